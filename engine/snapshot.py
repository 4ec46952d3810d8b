"""Holds what a row is, apart from the engine it ran in: enough for another process to go on.

Two values. A `CachedPrefix` is the KV of some tokens, for any row that begins with them (a prompt
cache, a prefill/decode hand-off). A `SequenceSnapshot` is a whole row. Their arrays are their own:
nothing of an engine is kept alive or kept from being reused.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile

from engine.errors import SnapshotError
from engine.kv.storage import RowSnapshot
from engine.lookup.drafter import PromptLookup
from engine.lookup.governor import Governor
from engine.lookup.reference import ReferenceText
from engine.models.fingerprint import ModelFingerprint
from engine.params import SequenceParams
from engine.sampling.row_sampler import SamplerSnapshot


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """The KV of ``ids``, whatever row it came from."""

    model: ModelFingerprint
    ids: tuple[int, ...]
    kv: RowSnapshot

    def __post_init__(self) -> None:
        if len(self.ids) != self.kv.tokens:
            raise SnapshotError(f"KV of {self.kv.tokens} tokens for {len(self.ids)} ids")

    @property
    def nbytes(self) -> int:
        """Bytes its arrays take."""
        return self.kv.nbytes

    def shared_tokens(self, prompt_ids: Sequence[int]) -> int:
        """How many tokens a prompt can take over; its last one is always forwarded anew.

        0 where this KV can only be used as a whole and the prompt does not hold all of it.
        """
        if len(self.ids) < len(prompt_ids) and tuple(prompt_ids[: len(self.ids)]) == self.ids:
            return len(self.ids)
        pairs = zip(self.ids, prompt_ids[:-1], strict=False)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return 0 if self.kv.is_whole and shared < len(self.ids) else shared

    def first(self, tokens: int) -> "CachedPrefix":
        """The first ``tokens`` tokens of it; a view, not a copy.

        Raises:
            SnapshotError: there are fewer, or this KV exists only as a whole.
        """
        return replace(self, ids=self.ids[:tokens], kv=self.kv.first(tokens))


@dataclass(frozen=True, slots=True)
class SequenceSnapshot:
    """A row as it was between two tokens.

    The length law of `engine.rows` holds in it: KV is of all ids but the newest; while the
    prompt is read, of the part of the prompt that was read.
    """

    model: ModelFingerprint
    params: SequenceParams
    """The request, with the seed it drew and the context bound it had."""
    written: tuple[int, ...]
    """The answer so far."""
    kv: RowSnapshot
    sampler: SamplerSnapshot
    governor: Governor | None = None
    """The draft budget's keeper of a row that drafts; the drafter's context is ``ids``."""
    had_hooks: bool = False
    """Whether a mask or finish hook took part, without which the text would be another."""

    def __post_init__(self) -> None:
        held = self.kv.tokens
        whole = len(self.ids) - 1
        if held != whole and (self.written or held > whole):
            raise SnapshotError(f"KV of {held} tokens for a row of {len(self.ids)}")

    @property
    def ids(self) -> tuple[int, ...]:
        """Prompt and answer so far."""
        return self.params.prompt_ids + self.written

    @property
    def prefix(self) -> CachedPrefix:
        """Its KV for other rows."""
        return CachedPrefix(self.model, self.ids[: self.kv.tokens], self.kv)

    @property
    def nbytes(self) -> int:
        """Bytes its arrays take."""
        return self.kv.nbytes

    def cut(self, tokens: int) -> "SequenceSnapshot":
        """The row as it was when its KV held ``tokens`` tokens; a view, not a copy.

        Raises:
            SnapshotError: it never was, its KV exists only as a whole, or its sampler has learnt
                from the tokens that would go (mirostat).
        """
        if tokens == self.kv.tokens:
            return self
        if self.params.sampling.has_feedback:
            raise SnapshotError("mirostat's state is of the newest token: no earlier row is known")
        kept = self.kv.first(tokens)
        written = self.ids[len(self.params.prompt_ids) : tokens + 1]
        return replace(self, kv=kept, written=written)

    def drafter(self, references: Sequence[ReferenceText] = ()) -> PromptLookup | None:
        """A drafter that goes on where the row's was; None where it had none."""
        speculation = self.params.speculation
        if speculation is None or self.governor is None or not self.written:
            return None
        drafter = PromptLookup(speculation, self.governor, references=references)
        drafter.start(self.params.prompt_ids, self.written[0])
        drafter.observe(self.written[1:])
        return drafter
