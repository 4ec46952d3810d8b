"""Rule: every place that docs/architecture.md names exists, function by function."""

import ast
import re

import pytest

from tests.rules.tree import ROOT, syntax_tree, tracked_files

PAGE = ROOT / "docs/architecture.md"

PLACE = re.compile(r"`((?:engine|mlxcel_cli)/[\w/]+\.py):([\w.]+)`")

LIVES = ("A `mlxcel generate`", "A served stream", "A chat turn", "A tick of the scheduler")


def places() -> list[tuple[str, str]]:
    return PLACE.findall(PAGE.read_text("utf-8"))


def defines(tree: ast.Module, dotted: str) -> bool:
    """Whether a module defines a function or class, or a class a method, of that name."""
    scope: ast.AST = tree
    for name in dotted.split("."):
        found = [
            node
            for node in ast.iter_child_nodes(scope)
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.name == name
        ]
        if not found:
            return False
        scope = found[0]
    return True


@pytest.mark.parametrize(("file", "name"), sorted(set(places())), ids="{}".format)
def test_a_named_place_exists(file: str, name: str):
    path = next((path for path in tracked_files() if path.as_posix() == file), None)
    assert path is not None, f"no file {file}"
    assert defines(syntax_tree(path), name), f"{file} defines no {name}"


@pytest.mark.parametrize("life", LIVES)
def test_each_life_names_its_places(life: str):
    section = PAGE.read_text("utf-8").partition(f"## {life}\n")[2].partition("\n## ")[0]
    assert len(PLACE.findall(section)) >= 5


@pytest.mark.parametrize(
    ("name", "is_there"),
    [("f", True), ("C.m", True), ("C", True), ("m", False), ("C.f", False), ("x", False)],
)
def test_what_counts_as_a_place(name: str, is_there: bool):
    assert (
        defines(ast.parse("x = 1\ndef f(): ...\nclass C:\n    def m(self): ..."), name) == is_there
    )
