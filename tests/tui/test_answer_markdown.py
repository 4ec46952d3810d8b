"""An answer's blocks while it comes: grown in place, they look like the whole text at once."""

import asyncio
import random

import pytest
from textual.app import App
from textual.containers import VerticalScroll
from textual.widgets import Markdown
from textual.widgets.markdown import MarkdownBlock

from mlxcel_cli.tui.answer_markdown import AnswerMarkdown, BulletList, OrderedList, Paragraph

TEXTS = {
    "bullets": "Some *words*.\n\n- a\n- b `two`\n  - c in\n    more of c\n  - d\n\n  words\n- e\n",
    "numbers": "".join(f"{number}. item {number}\n" for number in range(7, 13)),
    "code in an item": "1. one\n2. two\n   ```py\n   x = 1\n   y = 2\n   ```\n3. three\n",
    "code": "```py\nx = 1\ny = [" + "1, " * 30 + "]\n\n\nz = 2\n```\n",
    "quotation": "> quote me\n> - in\n> - out\n>\n> more\n\nend\n",
    "lists in turn": "- a\n\n1) q\n2) r\n* s\n+ t\n\n- u\n\n      code in\n- v\n> k\nlazy\n",
    "heading after all": "- a\n- b\n\ntext\nmore\n===\n\n- x\n",
}


class TextApp(App[None]):
    def __init__(self, text: Markdown) -> None:
        super().__init__()
        self.text = text

    def compose(self):
        with VerticalScroll():
            yield self.text


def shape(widget) -> tuple:
    """What a reader sees of a widget and those in it, and where."""
    said = str(widget.content) if isinstance(widget, MarkdownBlock) else ""
    inside = [shape(child) for child in widget.children]
    return said, getattr(widget, "symbol", ""), widget.region, inside


async def settled(pilot):
    for _ in range(3):
        await pilot.pause()


def shape_of(widget: Markdown, pieces) -> tuple:
    """What a text looks like that came in pieces."""

    async def main():
        app = TextApp(widget)
        async with app.run_test(size=(40, 60)) as pilot:
            for piece in pieces:
                await widget.append(piece)
            await settled(pilot)
            return shape(widget)

    return asyncio.run(main())


def pieces_of(text: str, seed: int) -> list[str]:
    chance = random.Random(seed)
    pieces = []
    while text:
        end = chance.randint(1, 7)
        pieces.append(text[:end])
        text = text[end:]
    return pieces


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
@pytest.mark.parametrize("seed", [1, 2])
def test_what_came_in_pieces_looks_like_what_came_at_once(text, seed):
    assert shape_of(AnswerMarkdown(""), pieces_of(text, seed)) == shape_of(Markdown(""), [text])


@pytest.mark.parametrize(("kind", "mark"), [(BulletList, "-"), (OrderedList, "1.")])
def test_a_list_keeps_its_items_while_it_grows(kind, mark):
    async def main():
        app = TextApp(AnswerMarkdown(""))
        async with app.run_test(size=(40, 20)) as pilot:
            await app.text.append(f"{mark} one\n{mark} tw")
            await settled(pilot)
            before = list(app.query(Paragraph))
            await app.text.append(f"o\n{mark} three\n{mark} four")
            await settled(pilot)
            after = list(app.query(Paragraph))
            assert len(app.query(kind)) == 1
            assert [str(one.content) for one in after] == ["one", "two", "three", "four"]
            assert after[:2] == before

    asyncio.run(main())


def test_numbers_are_made_room_for_when_one_gets_longer():
    shown = shape_of(AnswerMarkdown(""), [f"{number}. x\n" for number in range(8, 11)])
    rows = shown[3][0][3]
    assert [row[3][0][1] for row in rows] == ["  8. ", "  9. ", " 10. "]
