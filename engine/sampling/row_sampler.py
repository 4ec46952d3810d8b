"""The sampler of one request: its parameters, seed, history windows and feedback."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.params import SamplingParams
from engine.sampling.adjustments import Adjustment, adjustment
from engine.sampling.dry import DryHistory
from engine.sampling.mirostat import first_mu, next_mu
from engine.sampling.penalties import PenaltyWindow
from engine.sampling.random import Purpose, host_uniform, position_key, row_base

SHUT_GATE = 2.0
"""An XTC threshold that no probability reaches."""


@dataclass(frozen=True, slots=True)
class SamplerSnapshot:
    """What a row's sampler needs, with its parameters and token ids, to continue elsewhere."""

    seed: int
    mu: float
    """Mirostat's bound, in bits."""


class RowSampler:
    """The mutable sampler state of one row.

    Everything random is a function of the seed, the choice and the absolute position, so the
    only state is what speeds up a draw (windows over the ids, rebuilt from them at will) and
    mirostat's bound.
    """

    __slots__ = (
        "_bias",
        "_choice",
        "_dry",
        "_key_base",
        "_min_position",
        "_mu",
        "_suppressed",
        "_window",
        "params",
        "seed",
        "vocab_size",
    )

    def __init__(  # noqa: PLR0913 - one value each of what a request may shape
        self,
        params: SamplingParams,
        *,
        seed: int,
        choice: int,
        vocab_size: int,
        eos_ids: frozenset[int],
        prompt_tokens: int,
        suppress_eos: bool = False,
        min_tokens: int = 0,
        dry_breakers: Sequence[Sequence[int]] = (),
    ) -> None:
        """Build a row's sampler.

        Args:
            params: the request's; `engine.rows.new_row` has checked its ids. Its seed is unused.
            seed: below 2^53; the caller draws one when the request names none.
            choice: index of the answer among ``n``.
            vocab_size: logits width.
            eos_ids: end tokens; those outside the vocabulary are ignored.
            prompt_tokens: where the answer starts, for ``min_tokens``.
            suppress_eos: no end token is ever drawn (``ignore_eos``).
            min_tokens: no end token is drawn before so many tokens are written.
            dry_breakers: DRY's sequence breakers as token ids.
        """
        self.params = params
        self.seed = seed
        self.vocab_size = vocab_size
        self._choice = choice
        self._key_base = row_base(seed, choice)
        eos = frozenset(token for token in eos_ids if 0 <= token < vocab_size)
        self._bias = adjustment(params.logit_bias, eos if suppress_eos else frozenset())
        self._min_position = prompt_tokens + min_tokens if min_tokens and eos else 0
        self._suppressed = adjustment(params.logit_bias, eos) if self._min_position else None
        size = params.repetition_context_size
        self._window = (
            PenaltyWindow(None if size < 0 else size - 1) if params.has_penalties else None
        )
        self._dry = DryHistory(params, dry_breakers) if params.has_dry else None
        self._mu = first_mu(params.mirostat_tau)

    @property
    def needs_host(self) -> bool:
        """Whether a draw must wait until the token before it has been read."""
        return self._dry is not None or self.params.has_feedback

    @property
    def is_greedy(self) -> bool:
        """Whether the most likely token is taken, once logits are adjusted and penalised."""
        return self.params.greedy or self.params.temperature == 0

    @property
    def is_plain_greedy(self) -> bool:
        """Whether the argmax of the model's own logits is the token."""
        return self.params.greedy and not (
            self._window is not None or self._dry is not None or self.adjusts
        )

    @property
    def adjusts(self) -> bool:
        """Whether fixed biases or suppressed tokens may change the logits."""
        return self._bias is not None or self._suppressed is not None

    @property
    def window(self) -> PenaltyWindow | None:
        """The penalties' history; None when no penalty is on."""
        return self._window

    @property
    def dry(self) -> DryHistory | None:
        """DRY's history; None when DRY is off."""
        return self._dry

    @property
    def mu(self) -> float:
        """Mirostat's bound, in bits."""
        return self._mu

    def advance(self, ids: Sequence[int], upto: int) -> None:
        """Let the windows cover ``ids[:upto]`` (the token after them may still be unread).

        ``draw`` does this itself for committed ids; calling it earlier only moves the cost.
        Forward it costs the new tokens; backward it rebuilds.
        """
        if self._window is not None and self._window.upto != upto:
            self._window.extend(ids, upto)

    def observe(self, logprob: float | None) -> None:
        """Take a token that was read into account (mirostat's feedback).

        Args:
            logprob: ``DrawReading.feedback`` of the row; None when there was none.
        """
        params = self.params
        if not params.has_feedback or logprob is None:
            return
        self._mu = next_mu(
            self._mu,
            logprob=0.0 if params.temperature == 0 else logprob,
            tau=params.mirostat_tau,
            eta=params.mirostat_eta,
        )

    def snapshot(self) -> SamplerSnapshot:
        """The state as plain values."""
        return SamplerSnapshot(self.seed, self._mu)

    def restore(self, snapshot: SamplerSnapshot) -> None:
        """Continue from a snapshot; windows follow from the ids of the next draw."""
        self.seed = snapshot.seed
        self._key_base = row_base(snapshot.seed, self._choice)
        self._mu = snapshot.mu

    def token_key(self, position: int) -> int:
        """64 bits that key the noise of the draw at an absolute position."""
        return position_key(self._key_base, position, Purpose.TOKEN)

    def xtc_threshold(self, position: int) -> float:
        """The threshold at a position, or one out of reach when the gate stays shut."""
        params = self.params
        if not self.has_xtc:
            return SHUT_GATE
        gate = host_uniform(self._key_base, position, Purpose.XTC_GATE)
        return params.xtc_threshold if gate < params.xtc_probability else SHUT_GATE

    @property
    def top_k(self) -> int:
        """Rank of the last token that top-k keeps; 0 when it keeps all."""
        off = self.params.has_feedback or self.params.top_k >= self.vocab_size
        return 0 if off else self.params.top_k

    @property
    def has_xtc(self) -> bool:
        """Whether XTC can change anything."""
        return self.params.xtc_probability > 0 and self.params.xtc_threshold <= 0.5

    def suppresses(self, position: int) -> bool:
        """Whether an end token at this position would be too early."""
        return position < self._min_position

    def adjustment(self, *, suppressed: bool) -> Adjustment | None:
        """The fixed biases, with the end tokens suppressed or as they are."""
        return self._suppressed if suppressed else self._bias
