"""Rule: the scheduler and the server are policy. Forwards and draws happen in the engine only."""

import ast
from pathlib import Path

import pytest

from tests.rules.tree import imports_any, python_files, syntax_tree

POLICY = [
    path
    for path in python_files("engine", "mlxcel_cli")
    if path.as_posix().startswith(("engine/scheduler/", "mlxcel_cli/serve/"))
]

MAKES_TOKENS = (
    "mlx_lm",
    "engine.forwards",
    "engine.sampling",
    "engine.lookup.verify",
)
"""Modules through which a model or a sampler could be called."""

CALLS = {
    "model",
    "_model",
    "update_and_fetch",
    "draw",
    "draw_positions",
    "of_row",
    "of_drafts",
    "argmax",
}


def forwards_and_draws(path: Path) -> set[str]:
    """What in a module runs a model, draws a token, or could."""
    called = {
        node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name)
    }
    return imports_any(path, *MAKES_TOKENS) | (called & CALLS)


def test_the_scheduler_and_the_server_call_no_model_and_no_sampler():
    found = {str(path): names for path in POLICY if (names := forwards_and_draws(path))}
    assert found == {}


def test_the_scheduler_holds_no_arrays():
    scheduler = [path for path in POLICY if path.parts[0] == "engine"]
    assert {str(path): names for path in scheduler if (names := imports_any(path, "mlx"))} == {}


def test_the_rule_sees_the_scheduler():
    assert Path("engine/scheduler/scheduler.py") in POLICY


@pytest.mark.parametrize("path", ["engine/forwards.py", "engine/steps.py"])
def test_the_rule_would_see_a_forward(path: str):
    assert forwards_and_draws(Path(path))
