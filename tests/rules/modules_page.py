"""Writes docs/modules.md: one line per module, its docstring's first sentence."""

import ast
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from tests.rules.tree import ROOT, python_files, syntax_tree

PAGE = ROOT / "docs" / "modules.md"

HEAD = """# Modules

What each module decides, holds or does, by its docstring. Written by `make generated`.
"""


def first_sentence(path: Path) -> str:
    """The docstring's first paragraph on one line, up to its first full stop."""
    paragraph = (ast.get_docstring(syntax_tree(path)) or "").split("\n\n")[0]
    text = " ".join(paragraph.split())
    return text.split(". ")[0].rstrip(".")


def page_lines() -> Iterator[str]:
    """The page, line by line: a table per package."""
    modules = python_files("engine", "mlxcel_cli")
    for folder, members in groupby(sorted(modules, key=lambda path: path.parent), key=parent):
        paths = list(members)
        packages = [path for path in paths if path.name == "__init__.py"]
        yield ""
        yield f"## {folder.as_posix()}/"
        yield ""
        for package in packages:
            yield f"{first_sentence(package)}."
            yield ""
        named = sorted(set(paths) - set(packages))
        yield from ("| module | |", "|---|---|") if named else ()
        for path in named:
            sentence = first_sentence(path).replace("|", "\\|")
            yield f"| [{path.name}](../{path.as_posix()}) | {sentence} |"


def parent(path: Path) -> Path:
    """The module's folder."""
    return path.parent


def page() -> str:
    """The whole text of docs/modules.md."""
    return HEAD + "\n".join(page_lines()) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
