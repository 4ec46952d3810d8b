"""Bars as text and as PNG: what a reader of either sees."""

import re
import struct
import zlib

import pytest

from mlxcel_cli.bench.charts import PALETTE, WIDTH, Bar, Chart, png, text_bars

CHART = Chart("Speed", (Bar("one", 1.0), Bar("two", 2.0)), mark=1.0)


def pixels(content: bytes) -> list[bytes]:
    """The lines of an indexed PNG, decoded by the format's own rules; checksums are checked."""
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(content):
        size, kind = struct.unpack(">I4s", content[at : at + 8])
        body = content[at + 8 : at + 8 + size]
        (crc,) = struct.unpack(">I", content[at + 8 + size : at + 12 + size])
        assert crc == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + size
    width, height, depth, color, *_ = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (width, depth, color) == (WIDTH, 8, 3)
    assert len(chunks[b"PLTE"]) == 3 * len(PALETTE)
    data = zlib.decompress(chunks[b"IDAT"])
    assert len(data) == height * (width + 1)
    lines = [data[y * (width + 1) : (y + 1) * (width + 1)] for y in range(height)]
    assert {line[0] for line in lines} == {0}
    return [line[1:] for line in lines]


def bar_lengths(lines: list[bytes]) -> list[int]:
    """Lengths of the bars from the top, the mark that crosses them counted in."""
    found = [len(re.search(rb"\x02[\x02\x03]*", line)[0]) for line in lines if b"\x02" in line]
    return [a for a, b in zip(found, [0, *found], strict=False) if a != b]


def test_bars_of_text_are_as_long_as_their_values():
    title, one, two = text_bars(CHART, 80)
    assert title == "Speed"
    assert (one.split()[:2], two.split()[:2]) == (["one", "1.00"], ["two", "2.00"])
    assert abs(two.count("█") - 2 * one.count("█")) <= 1
    assert one.count("█") > 10


@pytest.mark.parametrize("columns", [1, 40, 100, 300])
def test_bars_of_text_keep_to_the_terminal(columns):
    long = Chart("t", (Bar("a very long label that goes on and on and on", 3.0),))
    (line,) = text_bars(long, columns)[1:]
    assert len(line) <= max(columns, 46)


def test_a_png_has_bars_as_long_as_their_values():
    one, two = bar_lengths(pixels(png([CHART])))
    assert two == pytest.approx(2 * one, abs=2)


def test_a_png_holds_every_chart_below_the_one_before():
    height = len(pixels(png([CHART])))
    both = pixels(png([CHART, CHART]))
    assert len(bar_lengths(both)) == 4
    assert len(both) > 1.7 * height


def test_letters_are_drawn_and_what_the_font_lacks_is_blank():
    def ink(title: str) -> int:
        return sum(line.count(1) for line in pixels(png([Chart(title, ())])))

    assert ink("abc xyz 019 .,:%()/-+='_") > ink("a") > 0
    assert ink("日本") == 0


@pytest.mark.parametrize("values", [(), (0.0,), (0.0, 1e-9), (5.0, 0.0)])
def test_any_values_can_be_drawn(values):
    chart = Chart("t", tuple(Bar(str(value), value) for value in values))
    assert pixels(png([chart]))
    assert len(text_bars(chart, 80)) == 1 + len(values)
