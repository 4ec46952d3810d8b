"""What a verify round costs by its width, and the draft length that pays best at that price."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from engine.errors import InvalidParams

MARGIN = 1.05
"""A draft must promise this much more than plain decoding: costs are measured to a few percent, and
chances are estimates."""


@dataclass(frozen=True, slots=True)
class WidthCosts:
    """Cost of one forward over 1, 2, … tokens of a row, read and decided on the host.

    The unit is one pipelined plain step, so that width 1 costs more than 1 where a host read
    between steps is felt. Measured at warm-up; between two measured widths it is a straight line.
    """

    by_width: tuple[float, ...]
    """Cost of width i + 1 at index i."""

    def __post_init__(self) -> None:
        if not self.by_width:
            raise InvalidParams("width_costs", "no width was measured")
        for cost in self.by_width:
            if not (math.isfinite(cost) and cost > 0):
                raise InvalidParams("width_costs", f"a cost must be above 0, got {cost}")

    @classmethod
    def from_seconds(
        cls, seconds: Mapping[int, float], *, step_seconds: float, max_width: int
    ) -> "WidthCosts":
        """Costs of widths 1 to ``max_width``.

        Args:
            seconds: measured width to the seconds of one such forward; width 1 may be missing, it
                then costs one step.
            step_seconds: seconds of one pipelined plain step.
            max_width: ``max_draft`` + 1; past the widest measured one the last slope continues.
        """
        if not (math.isfinite(step_seconds) and step_seconds > 0):
            raise InvalidParams("width_costs", f"a step must take time, got {step_seconds} s")
        known = {1: 1.0} | {width: spent / step_seconds for width, spent in seconds.items()}
        points = sorted(known.items())
        return cls(tuple(_interpolated(points, width) for width in range(1, max_width + 1)))

    @property
    def max_draft(self) -> int:
        """The longest draft whose cost is known."""
        return len(self.by_width) - 1

    def verify(self, draft_tokens: int) -> float:
        """Cost of a verify round with so many drafted tokens."""
        return self.by_width[draft_tokens]

    def forward(self, tokens: int) -> float:
        """Cost of one forward over so many tokens of any rows; the last slope continues.

        On two cores 16 tokens cost 2.4 lone steps and 32 cost 4.4, as the line says; on a GPU it is
        nearly level.
        """
        widest = len(self.by_width)
        if tokens <= widest:
            return self.by_width[tokens - 1]
        half = (widest + 1) // 2
        rise = self.by_width[-1] - self.by_width[half - 1]
        slope = max(0.0, rise / (widest - half)) if widest > 1 else self.by_width[0]
        return self.by_width[-1] + slope * (tokens - widest)

    def step(self, rows: int) -> float:
        """Cost of a pipelined plain step of so many rows; 1 for one."""
        return max(1.0, self.forward(rows) - self.by_width[0] + 1)

    @property
    def can_pay(self) -> bool:
        """Whether some draft would beat plain decoding if every token of it were accepted."""
        return best_draft([1.0] * self.max_draft, self) > 0


def expected_tokens(chances: Sequence[float]) -> float:
    """Tokens that a round writes on average: the accepted prefix and one of the model's own.

    With one chance a for all of k tokens this is (1 - a^(k+1)) / (1 - a).

    Args:
        chances: chance of each drafted token to be accepted once those before it were.
    """
    total = reached = 1.0
    for chance in chances:
        reached *= chance
        total += reached
    return total


def best_draft(chances: Sequence[float], costs: WidthCosts, *, extra_cost: float = 0.0) -> int:
    """The draft length that writes most tokens per unit of cost; 0 when plain decoding does.

    Args:
        chances: as for ``expected_tokens``, one per token of the proposal.
        costs: prices of the rounds; no draft is longer than what they cover.
        extra_cost: what drafting at all costs besides the round itself.
    """
    best, best_rate = 0, MARGIN
    tokens = reached = 1.0
    for length, chance in enumerate(chances[: costs.max_draft], start=1):
        reached *= chance
        tokens += reached
        rate = tokens / (costs.verify(length) + extra_cost)
        if rate > best_rate:
            best, best_rate = length, rate
    return best


@cache
def costs_beside(costs: WidthCosts, others: int, *, shares: bool) -> WidthCosts:
    """What a row's round costs while ``others`` rows wait for their next token, too.

    The unit is what a plain token of that batch takes: a draft has to bring more tokens than all
    rows would have written in the time it takes.

    Args:
        costs: of a lone row.
        others: rows that decode with it.
        shares: whether one forward may verify the draft and be the others' step.
    """
    if others == 0:
        return costs
    token = costs.step(others + 1) / (others + 1)
    by_width = []
    for width, alone in enumerate(costs.by_width, start=1):
        spent = alone + costs.step(others)
        if shares:
            spent = min(spent, costs.forward(width * (others + 1)))
        by_width.append(max(spent / token - others, 1.0))
    return WidthCosts(tuple(by_width))


def share_pays(drafts: Sequence[int], plain: int, costs: WidthCosts, *, rows: int) -> bool:
    """Whether one forward for all rows is cheaper than a round for each draft and a step.

    Args:
        drafts: tokens of each draft, at least one.
        plain: rows without a draft.
        costs: of a lone row.
        rows: of the shared forward, each as wide as the longest draft needs.
    """
    apart = sum(costs.verify(tokens) for tokens in drafts) + (costs.step(plain) if plain else 0.0)
    return costs.forward(rows * (max(drafts) + 1)) < apart


def _interpolated(points: Sequence[tuple[int, float]], width: int) -> float:
    """The piecewise straight line through ``points`` (by width, the first at 1) at ``width``."""
    if len(points) == 1:
        return points[0][1] * width  # nothing else is known: no width is taken to be a bargain
    right = next((i for i, (x, _) in enumerate(points) if x >= width and i > 0), len(points) - 1)
    (x0, y0), (x1, y1) = points[right - 1], points[right]
    return max(y0 + (y1 - y0) * (width - x0) / (x1 - x0), min(y0, y1))
