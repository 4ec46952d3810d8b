"""Rule: the host reads the device in one guarded place.

A read is where a backend's failure surfaces. In one place it becomes an EvalFailed of the
rows it belongs to; anywhere else it would end the thread that serves everyone.
"""

import ast
from pathlib import Path

import pytest

from tests.rules.tree import may_hold_arrays, python_files, syntax_tree

ALLOWED = ("engine/guard.py", "engine/models/", "engine/runtime/")
"""The guard, and code that runs while a model loads, before any row exists.

Modules that hold no MLX arrays pass too: the arrays of NumPy and of Python have the same
methods, and wait for nothing.
"""

METHODS = {"item", "tolist"}
FUNCTIONS = {"mx.eval", "mx.async_eval", "mx.synchronize", "np.array", "np.asarray", "memoryview"}


def device_reads(tree: ast.AST) -> list[int]:
    """Lines where a call may wait for the device."""
    lines = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        is_method = isinstance(node.func, ast.Attribute) and node.func.attr in METHODS
        if is_method or called in FUNCTIONS:
            lines.append(node.lineno)
    return lines


def test_the_host_reads_the_device_only_through_the_guard():
    found = [
        f"{path}:{line}"
        for path in python_files("engine")
        if may_hold_arrays(path) and not path.as_posix().startswith(ALLOWED)
        for line in device_reads(syntax_tree(path))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        ("token.item()", [1]),
        ("logits[0].tolist()", [1]),
        ("mx.eval(logits)", [1]),
        ("x = 1\nmx.async_eval(*arrays)", [2]),
        ("np.array(logits)", [1]),
        ("pairs.items()", []),
        ("mx.array([1])", []),
        ("read_tokens(tokens)", []),
    ],
)
def test_what_counts_as_a_device_read(code: str, lines: list[int]):
    assert device_reads(ast.parse(code)) == lines


def test_the_guard_is_where_the_rule_says():
    assert Path("engine/guard.py") in python_files("engine")


@pytest.mark.parametrize(
    ("module", "may"),
    [("engine/guard.py", True), ("engine/steps.py", True), ("engine/finish.py", False)],
)
def test_which_modules_may_hold_arrays(module: str, may: bool):
    assert may_hold_arrays(Path(module)) == may
