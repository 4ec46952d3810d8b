"""Horizontal bar charts: as lines of text for a terminal, as an SVG for a file."""

from dataclasses import dataclass
from html import escape

LABEL_COLUMNS = 28

WIDTH = 960
MARGIN = 16
BAR_HEIGHT = 18
ROW_HEIGHT = 26
LABEL_WIDTH = 240
VALUE_WIDTH = 64


@dataclass(frozen=True, slots=True)
class Bar:
    """One value and its name."""

    label: str
    value: float


@dataclass(frozen=True, slots=True)
class Chart:
    """Bars that are compared with one another."""

    title: str
    bars: tuple[Bar, ...]
    mark: float | None = None
    """A value to compare with, drawn as a line."""

    @property
    def largest(self) -> float:
        """What the full width stands for; above 0."""
        return max([bar.value for bar in self.bars] + [self.mark or 0.0]) or 1.0


def text_bars(chart: Chart, columns: int) -> list[str]:
    """The chart as lines of at most ``columns`` characters."""
    room = max(8, columns - LABEL_COLUMNS - 9)
    return [chart.title] + [
        f"{bar.label[:LABEL_COLUMNS]:<{LABEL_COLUMNS}} {bar.value:6.2f} "
        + "█" * round(room * bar.value / chart.largest)
        for bar in chart.bars
    ]


def svg(chart: Chart) -> str:
    """The chart as an SVG file."""
    left = MARGIN + LABEL_WIDTH
    scale = (WIDTH - left - VALUE_WIDTH - MARGIN) / chart.largest
    top = MARGIN + ROW_HEIGHT
    bottom = top + len(chart.bars) * ROW_HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{bottom + MARGIN}"'
        ' font-family="sans-serif" font-size="13">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{MARGIN}" y="{MARGIN + 13}" font-weight="bold">{escape(chart.title)}</text>',
    ]
    for place, bar in enumerate(chart.bars):
        y, length = top + place * ROW_HEIGHT, bar.value * scale
        lines += [
            f'<text x="{MARGIN}" y="{y + 13}">{escape(bar.label)}</text>',
            f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{BAR_HEIGHT}" fill="#426eb4"/>',
            f'<text x="{left + length + 6:.1f}" y="{y + 13}">{bar.value:.2f}</text>',
        ]
    if chart.mark is not None:
        x = left + chart.mark * scale
        lines.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}" stroke="#aaaaaa"/>')
    return "\n".join([*lines, "</svg>", ""])
