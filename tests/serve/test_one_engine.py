"""Rule: the server and the scheduler run no forward and no draw of their own."""

import ast

import pytest

from tests.rules.tree import imports_any, python_files, syntax_tree

OURS = [
    path
    for path in python_files("engine", "mlxcel_cli")
    if path.as_posix().startswith(("mlxcel_cli/serve/", "engine/scheduler/"))
]
BEHIND_THE_ENGINE = ("engine.forwards", "engine.steps", "engine.sampling", "mlx_lm", "mlx.nn")
HANDLES = {"engine.steps", "engine.steps.Ticket"}
"""A dispatched step, to be handed back to the engine."""
FORWARDS = {"draw", "sample", "argmax", "categorical", "softmax", "logits", "__call__"}


def test_the_rule_sees_both_parts():
    assert {path.parts[1] for path in OURS} == {"serve", "scheduler"}


@pytest.mark.parametrize("path", OURS, ids=str)
def test_nothing_behind_the_engine_is_imported(path):
    assert imports_any(path, *BEHIND_THE_ENGINE) - HANDLES == set()


@pytest.mark.parametrize("path", OURS, ids=str)
def test_no_model_is_called_and_nothing_is_drawn(path):
    called = {
        node.func.attr
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    assert called & FORWARDS == set()
    assert not any(ast.unparse(node.func).endswith(".model") for node in calls(path))


def calls(path):
    return [node for node in ast.walk(syntax_tree(path)) if isinstance(node, ast.Call)]
