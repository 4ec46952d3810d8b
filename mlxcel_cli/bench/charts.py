"""Horizontal bar charts: as lines of text for a terminal, as a PNG for a file.

The PNG is written with nothing but the standard library; its letters are 3 by 5 pixels, enlarged.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

LABEL_COLUMNS = 28

WIDTH = 960
MARGIN = 16
BAR_HEIGHT = 18
ROW_HEIGHT = 26
SCALE = 2
LABEL_WIDTH = 320
VALUE_WIDTH = 90

PALETTE = ((255, 255, 255), (32, 32, 32), (66, 110, 180), (170, 170, 170))
_PAPER, _INK, _BAR, _MARK = range(len(PALETTE))

# Five rows from the top, each an octal digit: 4 is the left pixel, 2 the middle, 1 the right one.
_GLYPHS = {
    "A": "25755", "B": "65656", "C": "34443", "D": "65556", "E": "74647", "F": "74644",
    "G": "34553", "H": "55755", "I": "72227", "J": "11152", "K": "55655", "L": "44447",
    "M": "57755", "N": "65555", "O": "25552", "P": "65644", "Q": "25563", "R": "65655",
    "S": "34216", "T": "72222", "U": "55557", "V": "55552", "W": "55775", "X": "55255",
    "Y": "55222", "Z": "71247", "0": "75557", "1": "26227", "2": "71747", "3": "71317",
    "4": "55711", "5": "74717", "6": "74757", "7": "71244", "8": "75757", "9": "75717",
    ".": "00002", "-": "00700", "/": "11244", ":": "02020", "%": "51245", "(": "12221",
    ")": "42224", "+": "02720", ",": "00024", "=": "07070", "'": "22000", "_": "00007",
}  # fmt: skip


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


def text_bars(chart: Chart, columns: int) -> list[str]:
    """The chart as lines of at most ``columns`` characters."""
    room = max(8, columns - LABEL_COLUMNS - 9)
    most = _most(chart)
    return [chart.title] + [
        f"{bar.label[:LABEL_COLUMNS]:<{LABEL_COLUMNS}} {bar.value:6.2f} "
        + "█" * round(room * bar.value / most)
        for bar in chart.bars
    ]


def png(charts: Sequence[Chart]) -> bytes:
    """The charts, one below the other, as a PNG file."""
    canvas = _Canvas(sum(_height(chart) for chart in charts) + MARGIN)
    top = MARGIN
    for chart in charts:
        _draw(canvas, chart, top)
        top += _height(chart)
    return canvas.encode()


class _Canvas:
    """Indexed pixels, one byte each."""

    def __init__(self, height: int) -> None:
        self.height = height
        self._pixels = bytearray(WIDTH * height)

    def fill(self, left: int, top: int, width: int, height: int, *, color: int) -> None:
        """Paint a rectangle."""
        for y in range(top, top + height):
            start = y * WIDTH + left
            self._pixels[start : start + width] = bytes([color]) * width

    def write(self, left: int, top: int, text: str) -> None:
        """Letters from ``left`` on; what the font has not stays blank."""
        for place, letter in enumerate(text.upper()):
            rows = _GLYPHS.get(letter, "00000")
            for y, row in enumerate(rows):
                for x in range(3):
                    if int(row) & (4 >> x):
                        at = left + (place * 4 + x) * SCALE
                        self.fill(at, top + y * SCALE, SCALE, SCALE, color=_INK)

    def encode(self) -> bytes:
        """The pixels as a PNG file."""
        lines = (b"\x00" + self._pixels[y * WIDTH : (y + 1) * WIDTH] for y in range(self.height))
        header = struct.pack(">IIBBBBB", WIDTH, self.height, 8, 3, 0, 0, 0)
        return (
            b"\x89PNG\r\n\x1a\n"
            + _chunk(b"IHDR", header)
            + _chunk(b"PLTE", bytes(part for color in PALETTE for part in color))
            + _chunk(b"IDAT", zlib.compress(b"".join(lines)))
            + _chunk(b"IEND", b"")
        )


def _draw(canvas: _Canvas, chart: Chart, top: int) -> None:
    canvas.write(MARGIN, top, chart.title)
    left = MARGIN + LABEL_WIDTH
    room = WIDTH - left - VALUE_WIDTH - MARGIN
    most = _most(chart)
    first = top + ROW_HEIGHT
    for place, bar in enumerate(chart.bars):
        y = first + place * ROW_HEIGHT
        length = round(room * bar.value / most)
        letters = y + (BAR_HEIGHT - 5 * SCALE) // 2
        canvas.write(MARGIN, letters, bar.label[: LABEL_WIDTH // (4 * SCALE) - 1])
        canvas.fill(left, y, length, BAR_HEIGHT, color=_BAR)
        canvas.write(left + length + 6, letters, f"{bar.value:.2f}")
    if chart.mark is not None and chart.mark <= most:
        at = left + round(room * chart.mark / most)
        canvas.fill(at, first, 1, len(chart.bars) * ROW_HEIGHT, color=_MARK)


def _height(chart: Chart) -> int:
    return (len(chart.bars) + 2) * ROW_HEIGHT


def _most(chart: Chart) -> float:
    return max([bar.value for bar in chart.bars] + [chart.mark or 0.0]) or 1.0


def _chunk(kind: bytes, content: bytes) -> bytes:
    body = kind + content
    return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))
