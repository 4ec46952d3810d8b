"""Private names of Textual that the chat uses or replaces: a test says which one is gone.

A new version of Textual may rename any of them; `pyproject.toml` bounds the version for that.
"""

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rules.tree import module_name, python_files, syntax_tree

SCREEN = [path for path in python_files("mlxcel_cli") if Path("mlxcel_cli/tui") in path.parents]

NAMES = {
    "textual.widgets._markdown.MarkdownBlockQuote": "answer_markdown: a quotation that grows",
    "textual.widgets._markdown.MarkdownBullet": "answer_markdown: an item's mark",
    "textual.widgets._markdown.MarkdownBullet.symbol": "answer_markdown: an item's mark",
    "textual.widgets._markdown.MarkdownBulletList": "answer_markdown: a list that grows",
    "textual.widgets._markdown.MarkdownOrderedList": "answer_markdown: a list that grows",
    "textual.widgets._markdown.MarkdownOrderedListItem": "answer_markdown: what follows a number",
    "textual.widgets._markdown.MarkdownParagraph": "answer_markdown: lays out for new lines only",
    "textual.widgets._markdown.MarkdownUnorderedListItem": "answer_markdown: what follows a mark",
    "textual.widgets._markdown.MarkdownListItem.bullet": "answer_markdown: the mark's text",
    "textual.widgets._markdown.MarkdownBlock._blocks": "answer_markdown: what is in a block",
    "textual.widgets._markdown.MarkdownBlock._copy_context": "answer_markdown: a block's place",
    "textual.widgets._markdown.MarkdownBlock._update_from_block": "answer_markdown: replaced",
    "textual.widgets._markdown.MarkdownFence._highlighted_code": "answer_markdown: a fence's lines",
    "textual.widget.Widget._anchor_released": "transcript: whether the reader has scrolled away",
    "textual.widgets._text_area.TextArea._on_key": "prompt: runs before the text area's own",
    "textual.screen.UPDATE_PERIOD": "run: replaced, to draw more often",
    "textual.drivers.linux_driver.getincrementaldecoder": "run: replaced, to decode broken UTF-8",
}
"""Where Textual has it -> where and what for the chat needs it."""


@pytest.mark.parametrize("name", NAMES)
def test_textual_has_the_private_name(name: str):
    assert has(name), f"Textual has no {name} any more; mlxcel_cli/tui/{NAMES[name]}"


def test_a_name_that_is_gone_is_seen():
    assert not has("textual.widget.Widget._no_such_attribute")
    assert not has("textual.widgets._markdown.NoSuchClass")


def test_the_list_is_whole():
    listed = {name.rpartition(".")[2] for name in NAMES}
    attributes = {name for path in SCREEN for name in private_attributes(path)}
    replaced = {name for path in SCREEN for name in [*patched(path), *overridden(path)]}
    assert (attributes - own_names()) | replaced <= listed


def has(name: str) -> bool:
    """Whether a module, or a class of one, has the name: as its own or set when it is made."""
    parts = name.split(".")
    end = next(i for i, part in enumerate(parts) if part[0].isupper() or i == len(parts) - 1)
    found: object = importlib.import_module(".".join(parts[:end]))
    for part in parts[end:]:
        if hasattr(found, part):
            found = getattr(found, part)
        else:
            return inspect.isclass(found) and part in found.__init__.__code__.co_names
    return True


def private_attributes(path: Path) -> Iterator[str]:
    """What a module takes from private modules of Textual, and attributes with an underscore."""
    for node in ast.walk(syntax_tree(path)):
        if isinstance(node, ast.ImportFrom):
            if "textual" in (node.module or "") and "._" in (node.module or ""):
                yield from (one.name for one in node.names)
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            yield node.attr


def patched(path: Path) -> Iterator[str]:
    """Names set in another module: ``vars(module)["name"] = ...``."""
    for node in ast.walk(syntax_tree(path)):
        if isinstance(node, ast.Subscript) and ast.unparse(node.value).startswith("vars("):
            yield ast.literal_eval(node.slice)


def overridden(path: Path) -> Iterator[str]:
    """Private methods of Textual that a class defines anew."""
    for kind in vars(importlib.import_module(module_name(path))).values():
        if inspect.isclass(kind) and kind.__module__ == module_name(path):
            own = {name for name, value in vars(kind).items() if inspect.isfunction(value)}
            bases = [one for one in kind.__mro__ if one.__module__.startswith("textual")]
            yield from (
                name for name in own for base in bases if is_private(name) and name in vars(base)
            )


def own_names() -> set[str]:
    """Private names that the chat's own code defines."""
    names = set()
    for node in (node for path in SCREEN for node in ast.walk(syntax_tree(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.attr)
    return names


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")
