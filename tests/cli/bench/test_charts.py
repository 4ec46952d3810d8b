"""Bars as text and as SVG: what a reader of either sees."""

from xml.etree import ElementTree

import pytest

from mlxcel_cli.bench.charts import WIDTH, Bar, Chart, svg, text_bars

CHART = Chart("Speed", (Bar("one", 1.0), Bar("two", 2.0)), mark=1.0)


def shapes(chart: Chart, name: str) -> list[dict[str, str]]:
    """Attributes of the elements of one kind; the background is left out."""
    found = ElementTree.fromstring(svg(chart)).findall(f"{{http://www.w3.org/2000/svg}}{name}")
    return [one.attrib | {"text": one.text or ""} for one in found if one.get("fill") != "white"]


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


def test_an_svg_has_bars_as_long_as_their_values_and_the_mark_at_its_own():
    one, two = shapes(CHART, "rect")
    assert float(two["width"]) == pytest.approx(2 * float(one["width"]), abs=0.1)
    assert float(two["x"]) + float(two["width"]) < WIDTH
    (mark,) = shapes(CHART, "line")
    assert float(mark["x1"]) == pytest.approx(float(one["x"]) + float(one["width"]), abs=0.1)


def test_an_svg_says_the_title_the_labels_and_the_values_whatever_their_characters():
    chart = Chart("a < b & 日本", (Bar('"x"', 1.5),))
    assert [one["text"] for one in shapes(chart, "text")] == ["a < b & 日本", '"x"', "1.50"]


@pytest.mark.parametrize("values", [(), (0.0,), (0.0, 1e-9), (5.0, 0.0)])
def test_any_values_can_be_drawn(values):
    chart = Chart("t", tuple(Bar(str(value), value) for value in values))
    assert len(shapes(chart, "rect")) == len(values)
    assert len(text_bars(chart, 80)) == 1 + len(values)
