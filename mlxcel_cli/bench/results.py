"""What the benchmarks of `mlxcel bench` measure: frozen values, and the tables made of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from statistics import median

from engine.lookup.stats import LookupStats
from mlxcel_cli.bench.charts import Bar, Chart

PLAIN = "plain"
VARIANTS = (PLAIN, "graded", "gated", "auto")
"""Plain decoding, then prompt lookup's policies."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What is measured, and on what."""

    model: str
    device: str
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WidthTable:
    """Seconds of forwards of one row by width."""

    prompt_tokens: int
    repeats: int
    step_s: float
    """One pipelined one-token step, the unit of costs."""
    seconds: tuple[tuple[int, float], ...]
    """Width and the median of its forwards, read and decided on the host."""
    kept_in: Path | None = None
    """Where prompt lookup finds the costs from now on."""

    @property
    def costs(self) -> tuple[tuple[int, float], ...]:
        """Width and cost."""
        return tuple((width, spent / self.step_s) for width, spent in self.seconds)

    def chart(self) -> Chart:
        """Costs by width."""
        bars = tuple(Bar(f"width {width}", cost) for width, cost in self.costs)
        return Chart("Cost of a forward, in pipelined one-token steps", bars, mark=1.0)


@dataclass(frozen=True, slots=True)
class VariantRun:
    """One answer of one variant."""

    task: str
    variant: str
    repetition: int
    copies: bool
    tokens: int
    per_second: float
    """Tokens a second after the first one."""
    whole_per_second: float
    """Tokens a second of the whole call, the prompt's reading included."""
    text: str
    lookup: LookupStats | None = None


@dataclass(frozen=True, slots=True)
class VariantSummary:
    """One variant on one task."""

    task: str
    variant: str
    copies: bool
    per_second: float
    """Median."""
    over_plain: float
    """Median of the repetitions' ratios to the plain run of the same repetition."""
    tokens: int
    lookup: LookupStats | None
    """Of the first repetition; equal texts have equal counts, but for `auto`'s costs."""
    differs_at: int | None
    """First character that is not plain decoding's; None: the same text."""


def summarise(runs: Iterable[VariantRun]) -> list[VariantSummary]:
    """One summary for each task and variant, in the order they came."""
    by_variant: dict[tuple[str, str], list[VariantRun]] = {}
    for run in runs:
        by_variant.setdefault((run.task, run.variant), []).append(run)
    return [_summary(own, by_variant[own[0].task, PLAIN]) for own in by_variant.values()]


def geometric_mean(ratios: Sequence[float]) -> float:
    """Of at least one ratio above 0."""
    return exp(sum(map(log, ratios)) / len(ratios))


def copy_gain(summaries: Iterable[VariantSummary], variant: str) -> float | None:
    """Geometric mean of a variant's ratios on the tasks that copy; None without one."""
    ratios = [one.over_plain for one in summaries if one.variant == variant and one.copies]
    return geometric_mean(ratios) if ratios else None


def lookup_chart(summaries: Iterable[VariantSummary]) -> Chart:
    """Ratios to plain decoding, by task and variant."""
    bars = tuple(
        Bar(f"{one.task}, {one.variant}", one.over_plain)
        for one in summaries
        if one.variant != PLAIN
    )
    return Chart("Speed of prompt lookup over plain decoding", bars, mark=1.0)


def first_difference(text: str, plain: str) -> int | None:
    """Index of the first character in which two texts differ; None: they are equal."""
    if text == plain:
        return None
    pairs = zip(text, plain, strict=False)
    return next(
        (at for at, (one, other) in enumerate(pairs) if one != other), min(len(text), len(plain))
    )


def _summary(own: Sequence[VariantRun], plain: Sequence[VariantRun]) -> VariantSummary:
    first = own[0]
    ratios = [
        run.per_second / baseline.per_second
        for run, baseline in zip(own, plain, strict=True)
        if baseline.per_second
    ]
    return VariantSummary(
        task=first.task,
        variant=first.variant,
        copies=first.copies,
        per_second=median(run.per_second for run in own),
        over_plain=median(ratios) if ratios else 1.0,
        tokens=first.tokens,
        lookup=first.lookup,
        differs_at=first_difference(first.text, plain[0].text),
    )
