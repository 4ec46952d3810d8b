"""An answer's Markdown: its blocks, paragraphs and lists among them, grow in place while it comes.

Textual (8.2) asks for a layout, which goes through every widget of the chat, with every addition to
a paragraph, and with every addition to a list it removes the whole list and mounts a new one.
"""

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.geometry import Size
from textual.reactive import Reactive
from textual.visual import VisualType
from textual.widget import Widget
from textual.widgets import Label, Markdown
from textual.widgets._markdown import (
    MarkdownBlockQuote,
    MarkdownBullet,
    MarkdownBulletList,
    MarkdownOrderedList,
    MarkdownOrderedListItem,
    MarkdownParagraph,
    MarkdownUnorderedListItem,
)
from textual.widgets.markdown import MarkdownBlock, MarkdownFence


class Growing(MarkdownBlock):
    """A block that can become what a longer text makes of it."""

    virtual_size = Reactive(Size(0, 0))
    """It comes from a layout. Textual's own asks for another one with it."""

    @property
    def inner(self) -> list[MarkdownBlock]:
        """The blocks in it, as long as it is not shown."""
        return self._blocks

    async def grow(self, longer: MarkdownBlock) -> None:
        """Become ``longer``, which is not shown and never will be."""
        await self._update_from_block(longer)


class Paragraph(MarkdownParagraph, Growing):
    """A paragraph, which mostly stays within its lines."""

    def update(self, content: VisualType = "", *, layout: bool = True) -> None:
        """Show ``content``; lay out only if it takes another number of lines."""
        super().update(content, layout=False)
        if layout and needs_layout(self):
            self.refresh(layout=True)


class Code(Label):
    """The lines in a fence."""

    virtual_size = Reactive(Size(0, 0))

    def update(self, content: VisualType = "", *, layout: bool = True) -> None:
        """Show ``content``; lay out only if it takes another number of lines, or wider ones."""
        super().update(content, layout=False)
        if layout and (needs_layout(self) or self._needed_width > self.content_size.width):
            self.refresh(layout=True)

    @property
    def _needed_width(self) -> int:
        return self.get_content_width(Size(0, 0), self.screen.size)


class Fence(MarkdownFence, Growing):
    """Code."""

    def compose(self) -> ComposeResult:
        """Its lines."""
        yield Code(self._highlighted_code, id="code-content", expand=True)


class BlockQuote(MarkdownBlockQuote, Growing):
    """A quotation."""

    async def _update_from_block(self, block: MarkdownBlock) -> None:
        if isinstance(block, BlockQuote):
            await grow_inside(self, block.inner)
            self._copy_context(block)
        else:
            await super()._update_from_block(block)


class BulletItem(MarkdownUnorderedListItem, Growing):
    """What stands after a bullet."""


class OrderedItem(MarkdownOrderedListItem, Growing):
    """What stands after a number."""


class ItemRow(Horizontal):
    """A list's item and its mark."""

    virtual_size = Reactive(Size(0, 0))


class ItemColumn(Vertical):
    """What stands after a mark."""

    virtual_size = Reactive(Size(0, 0))


class GrowingList(Growing):
    """A list whose newest item grows, and to which others are added."""

    def marks(self) -> list[str]:
        """What stands before each item, as long as the list is not shown."""
        return [item.bullet for item in self.items]

    @property
    def items(self) -> list["BulletItem | OrderedItem"]:
        """Its items, as long as it is not shown."""
        return [item for item in self.inner if isinstance(item, BulletItem | OrderedItem)]

    def rows(self) -> list[ItemRow]:
        """Its items, to be shown."""
        rows = []
        for mark, item in zip(self.marks(), self.items, strict=True):
            bullet = MarkdownBullet()
            bullet.symbol = mark
            rows.append(ItemRow(bullet, ItemColumn(*item.inner)))
        return rows

    async def _update_from_block(self, block: MarkdownBlock) -> None:
        if not isinstance(block, type(self)) or not await self._take_in(block):
            await replace(self, block)

    async def _take_in(self, longer: "GrowingList") -> bool:
        """Grow into the longer list; False where this one cannot become it."""
        items, shown = longer.items, list(self.children)
        if not shown or len(shown) > len(items):
            return False
        mark = shown[0].children[0]
        if not isinstance(mark, MarkdownBullet) or mark.symbol != longer.marks()[0]:
            return False
        await grow_inside(shown[-1].children[-1], items[len(shown) - 1].inner)
        self._copy_context(longer)
        added = longer.rows()[len(shown) :]
        if added:
            await self.mount_all(added)
        return True


class BulletList(MarkdownBulletList, GrowingList):
    """A list with bullets."""

    def compose(self) -> ComposeResult:
        """Its items."""
        return self.rows()


class OrderedList(MarkdownOrderedList, GrowingList):
    """A list with numbers, all as wide as the longest."""

    def compose(self) -> ComposeResult:
        """Its items."""
        return self.rows()

    def marks(self) -> list[str]:
        """The numbers, from the first item's on."""
        first = int(self.items[0].bullet)
        marks = [f"{first + place}. " for place in range(len(self.items))]
        return [mark.rjust(len(marks[-1]) + 1) for mark in marks]


def needs_layout(shown: Widget) -> bool:
    """Whether a widget's text takes another number of lines than it has room for."""
    width, height = shown.content_size
    needed = shown.get_content_height(shown.size, shown.screen.size, width) if width else 0
    return not width or needed != height


async def grow_inside(home: Widget, blocks: list[MarkdownBlock]) -> None:
    """Let the newest block in ``home`` grow, and add those that follow it.

    Args:
        home: where the blocks are shown.
        blocks: what a longer text made of all that is in it.
    """
    shown = list(home.children)
    if len(shown) > len(blocks):
        await home.remove_children()
        shown = []
    if shown:
        newest, longer = shown[-1], blocks[len(shown) - 1]
        if isinstance(newest, Growing) and type(newest) is type(longer):
            await newest.grow(longer)
        else:
            await replace(newest, longer)
    if blocks[len(shown) :]:
        await home.mount_all(blocks[len(shown) :])


async def replace(old: Widget, new: Widget) -> None:
    """Show another widget in a widget's place."""
    assert isinstance(old.parent, Widget)
    await old.parent.mount(new, after=old)
    await old.remove()


BLOCKS = Markdown.BLOCKS | {
    "paragraph_open": Paragraph,
    "blockquote_open": BlockQuote,
    "bullet_list_open": BulletList,
    "ordered_list_open": OrderedList,
    "list_item_unordered_open": BulletItem,
    "list_item_ordered_open": OrderedItem,
    "fence": Fence,
    "code_block": Fence,
}
"""Which widget shows which block."""


class AnswerMarkdown(Markdown):
    """The text of an answer while it comes and after."""

    BLOCKS = BLOCKS

    virtual_size = Reactive(Size(0, 0))
    """Known from the layout, which need not be done again for it: nothing here scrolls."""
