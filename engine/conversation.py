"""Keeps the KV of a conversation between its turns, so that a turn reads only what is new.

A prompt takes over the longest beginning it shares with what was kept; its last token is always
forwarded anew. KV of full length can be cut anywhere. A ring or recurrent state is of exactly its
tokens, so copies from several moments are kept: the ends of the last turns and the end of the last
prompt, which make the next turn, an edit and a regeneration cheap.
"""

from typing import TYPE_CHECKING

from engine.errors import RowError, SnapshotError, UnsupportedModel
from engine.outcome import SeqId

if TYPE_CHECKING:
    from engine.engine import Engine
    from engine.params import SequenceParams
    from engine.snapshot import CachedPrefix
    from engine.text.row_text import RowText

WHOLE_PREFIXES = 3
"""Copies kept where KV cannot be cut: two ends of turns and the end of a prompt."""

WHOLE_KINDS = frozenset({"ring", "recurrent"})
"""Kinds of storage whose rows exist only as a whole."""


class Conversation:
    """What is kept of one conversation's KV; all calls come from the engine thread.

    Args:
        engine: where its rows live.
    """

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._kept: list[CachedPrefix] = []

    def open(self, params: "SequenceParams", text: "RowText") -> SeqId:
        """`Engine.open`, with as much KV as the prompt shares with what was kept.

        `Engine.cached_tokens` says how much that is.

        Raises:
            InvalidParams, ContextOverflow: as `Engine.open`; what was kept stays.
            EvalFailed: the backend threw; nothing is kept.
        """
        best = max(self._kept, key=lambda one: one.shared_tokens(params.prompt_ids), default=None)
        if best is None or not best.shared_tokens(params.prompt_ids):
            return self._engine.open(params, text=text)
        try:
            seq = self._engine.adopt(params, best, text=text)
        except RowError:
            self.forget()
            raise
        # The row has it now: a second copy of full-length KV would double what a turn needs.
        self._kept = [one for one in self._kept if one.kv.is_whole]
        return seq

    def at_prompt_end(self, seq: SeqId) -> None:
        """Keep a row whose prompt is read but for its last token, where it cannot be cut later."""
        if self._engine.choice.kind in WHOLE_KINDS:
            self._keep(seq)

    def at_end(self, seq: SeqId) -> None:
        """Keep what a row holds that is about to be closed: answered, cut off or failed."""
        self._keep(seq)

    def forget(self) -> None:
        """Drop what is kept, and the memory it takes."""
        self._kept.clear()

    @property
    def nbytes(self) -> int:
        """Bytes of the KV that is kept."""
        return sum(one.nbytes for one in self._kept)

    def _keep(self, seq: SeqId) -> None:
        try:
            kept = self._engine.detach(seq)
        except (SnapshotError, RowError, UnsupportedModel):
            # The next turn reads its prompt from the start: slower, and no other text.
            return
        if not kept.ids:
            return
        if kept.kv.is_whole:
            self._kept = [*self._kept[1 - WHOLE_PREFIXES :], kept]
        else:
            self._kept = [kept]
