"""What one sequence's drafter did, in numbers and as the line of ``--stats``."""

from dataclasses import dataclass, replace
from typing import Self

from engine.outcome import VerifyOutcome


@dataclass(frozen=True, slots=True)
class LookupStats:
    """What one sequence's drafter did."""

    rounds: int = 0
    """Asks that a forward followed; in a finished answer, all forwards after the prompt's."""
    drafted_rounds: int = 0
    paused_rounds: int = 0
    """Rounds whose budget was 0, or whose proposal was judged not to pay."""
    proposed: int = 0
    """Tokens in the drafts."""
    accepted: int = 0
    shadow_confirmations: int = 0
    """Proposals that nobody verified and that the text then confirmed."""

    @property
    def acceptance_rate(self) -> float:
        """Accepted over proposed tokens; 0 when none was proposed."""
        return self.accepted / self.proposed if self.proposed else 0.0

    def tokens_per_forward(self, generated_tokens: int) -> float:
        """Tokens written a round, the first one (prefill's) aside; 0 without a round."""
        return (generated_tokens - 1) / self.rounds if self.rounds else 0.0

    def after_ask(self, drafted_tokens: int, *, is_paused: bool) -> Self:
        """The counts with one more ask."""
        return self._with_asks(1, drafted_tokens, is_paused=is_paused)

    def before_ask(self, drafted_tokens: int, *, was_paused: bool) -> Self:
        """The counts without the last ask, which was retracted."""
        return self._with_asks(-1, drafted_tokens, is_paused=was_paused)

    def after_round(self, outcome: VerifyOutcome) -> Self:
        """The counts with one more verify round, for who sees rounds and no asks."""
        return replace(
            self,
            rounds=self.rounds + 1,
            drafted_rounds=self.drafted_rounds + 1,
            proposed=self.proposed + outcome.drafted,
            accepted=self.accepted + outcome.accepted,
        )

    def after_all(self, forwards: int) -> Self:
        """The counts of a finished answer.

        A retracted ask leaves a forward that nobody asked about, so does a draft without room and
        a dropped drafter: only who ran the forwards knows how many there were.
        """
        return replace(self, rounds=forwards)

    def line(self, generated_tokens: int) -> str:
        """The one line of ``--stats``, key=value pairs for people and harnesses."""
        return (
            f"[Prompt lookup] rounds={self.rounds} drafted_rounds={self.drafted_rounds} "
            f"paused_rounds={self.paused_rounds} proposed={self.proposed} "
            f"accepted={self.accepted} acceptance_rate={self.acceptance_rate:.4f} "
            f"tokens_per_forward={self.tokens_per_forward(generated_tokens):.4f} "
            f"shadow_confirmations={self.shadow_confirmations}"
        )

    def _with_asks(self, asks: int, drafted_tokens: int, *, is_paused: bool) -> Self:
        return replace(
            self,
            rounds=self.rounds + asks,
            paused_rounds=self.paused_rounds + asks * is_paused,
            drafted_rounds=self.drafted_rounds + asks * (drafted_tokens > 0),
            proposed=self.proposed + asks * drafted_tokens,
        )
