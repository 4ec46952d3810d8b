"""Markdown tables that appear row by row, and the figures in their cells."""

from collections.abc import Iterable, Sequence
from statistics import median, quantiles


def head(title: str, *columns: str) -> None:
    """A heading and a table's first lines; the first column is text, the others numbers."""
    print(f"\n## {title}\n\n| {' | '.join(columns)} |")
    print("|---|" + "--:|" * (len(columns) - 1), flush=True)


def row(*cells: str | float) -> None:
    """One line."""
    texts = (cell if isinstance(cell, str) else f"{cell:.2f}" for cell in cells)
    print(f"| {' | '.join(texts)} |", flush=True)


def note(text: str) -> None:
    """A paragraph below."""
    print(f"\n{text}", flush=True)


def spread(ratios: Iterable[float]) -> str:
    """Median, least and most."""
    ordered = sorted(ratios)
    return f"{median(ordered):.3f} ({ordered[0]:.3f} to {ordered[-1]:.3f})"


def percentile(values: Sequence[float], percent: int) -> float:
    """Of at least one value."""
    if len(values) < 2:
        return values[0]
    return quantiles(values, n=100, method="inclusive")[percent - 1]
