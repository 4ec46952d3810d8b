"""Rules of the file tree: short files, docstrings, mirrored tests, nothing of one machine."""

import ast
import re
from pathlib import Path

import pytest

from tests.rules.tree import (
    ROOT,
    imported_names,
    module_name,
    python_files,
    syntax_tree,
    tracked_files,
)

LONGEST_FILE_LINES = 400

LIBRARY = python_files("engine", "mlxcel_cli")
PYTHON = python_files("engine", "mlxcel_cli", "tests", "benchmarks")

MAY_CATCH_ALL = (
    "mlxcel_cli/engine_thread.py",  # what a job raises is raised again on its caller's side
    "engine/scheduler/",  # the row boundary: a row's failure ends that row
    "mlxcel_cli/app.py",  # the entry point: every error becomes a line and an exit status
    "mlxcel_cli/serve/middleware.py",  # a handler's failure is a response
    "mlxcel_cli/serve/delivery.py",  # behind a stream's head it is the stream's last event
    "mlxcel_cli/serve/engine_loop.py",  # what a request raises when it is taken refuses it
    "mlxcel_cli/generation.py",  # under --json the failure is a line of the output
    "engine/text/tokenizer.py",  # tokenizers raises plain Exception for a broken file
)

TERMINAL_WRITERS = (
    "mlxcel_cli/output.py",
    "mlxcel_cli/app.py",
    "mlxcel_cli/tui/",
    "mlxcel_cli/repl.py",
    "mlxcel_cli/line_input.py",
)

ENVIRONMENT_READERS = ("mlxcel_cli/config.py", "mlxcel_cli/paths.py", "engine/runtime/")

ENVIRONMENT_CARRIERS = ("mlxcel_cli/", "engine/models/starter.py")
"""May hand the environment on, to the readers or to a program they start."""

STARTED_BY_NAME = ("mlxcel_cli.__main__", "mlxcel_cli.commands.", "engine.runtime.blas_proof")
"""The command tree, or a process of their own, starts these; tests run the commands."""

OF_ONE_MACHINE = re.compile(
    r"(?:^|[\s\"'=(`:])/(?:work|root|home/\w+|Users/\w+)(?:/|\b)"
    r"|(?:--|PIP_)(?:extra-)?index[-_]url|trusted-host|pythonhosted\.org|pypi\.org/simple",
    re.MULTILINE | re.IGNORECASE,
)

NUMBERED_SECTION = re.compile(r"\b(?:behaviours|architecture|style)(?:\.md)?,? (?:section )?\d")

BINARY_SUFFIXES = {".gguf", ".safetensors", ".png", ".npz"}


def test_the_rules_see_the_packages():
    assert Path("engine/errors.py") in LIBRARY
    assert Path("mlxcel_cli/__init__.py") in LIBRARY


def test_no_file_is_longer_than_the_limit():
    lengths = {path: len((ROOT / path).read_text().splitlines()) for path in PYTHON}
    assert {path: n for path, n in lengths.items() if n > LONGEST_FILE_LINES} == {}


def test_every_module_has_a_docstring():
    modules = [*LIBRARY, *python_files("benchmarks")]
    assert [path for path in modules if ast.get_docstring(syntax_tree(path)) is None] == []


def test_every_init_is_only_a_docstring():
    # engine/__init__.py may name the public API lazily.
    inits = [path for path in LIBRARY if path.name == "__init__.py"]
    others = [path for path in inits if path != Path("engine/__init__.py")]
    assert [path for path in others if len(syntax_tree(path).body) != 1] == []


def test_every_module_is_imported_by_a_test():
    """By itself, or through a module that a test imports: without it that test fails."""
    modules = {module_name(path): path for path in LIBRARY if path.name != "__init__.py"}
    pending = modules.keys() & set().union(*map(imported_names, python_files("tests")))
    pending |= {name for name in modules if name.startswith(STARTED_BY_NAME)}
    reached: set[str] = set()
    while pending:
        reached |= pending
        pending = modules.keys() & set().union(*(imported_names(modules[m]) for m in pending))
        pending -= reached
    assert sorted(modules.keys() - reached) == []


def test_tests_hold_no_init_files():
    assert [path for path in python_files("tests") if path.name == "__init__.py"] == []


def test_no_library_module_prints():
    assert [path for path in LIBRARY if "print" in called_names(path)] == []


def test_only_output_entry_point_and_screens_write_to_the_terminal():
    writers = [
        str(path)
        for path in LIBRARY
        if {"sys.stdout", "sys.stderr"} & dotted_names(path)
        and not path.as_posix().startswith(TERMINAL_WRITERS)
    ]
    assert writers == []


def test_only_settings_and_runtime_read_the_environment():
    readers = [
        str(path)
        for path in LIBRARY
        if not path.as_posix().startswith(ENVIRONMENT_READERS)
        and (reads_environment(path) or touches_environment(path))
    ]
    assert readers == []


def test_only_owners_of_a_loop_or_an_entry_point_catch_every_exception():
    catchers = [
        f"{path}:{node.lineno}"
        for path in LIBRARY
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.ExceptHandler)
        and catches_everything(node)
        and not path.as_posix().startswith(MAY_CATCH_ALL)
    ]
    assert catchers == []


def test_nothing_of_one_machine_is_in_the_repository():
    found = [
        f"{path}: {match.group().strip()}"
        for path in tracked_files()
        if path.suffix not in BINARY_SUFFIXES and path != Path(__file__).relative_to(ROOT)
        for match in OF_ONE_MACHINE.finditer((ROOT / path).read_text("utf-8", errors="replace"))
    ]
    assert found == []


def test_no_text_refers_to_a_page_that_readers_do_not_have():
    found = [
        f"{path}: {match.group()}"
        for path in tracked_files()
        if path.suffix in {".py", ".md", ".toml", ".c"}
        for match in NUMBERED_SECTION.finditer((ROOT / path).read_text("utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "is_of_one_machine"),
    [
        ("see /home/ada/engine", True),
        ('"/root/.cache"', True),
        ("pip install --extra-index" + "-url x", True),
        ("GET /home page", False),
        ("the homework", False),
        ("and/or", False),
    ],
)
def test_what_counts_as_of_one_machine(text: str, is_of_one_machine: bool):
    assert bool(OF_ONE_MACHINE.search(text)) == is_of_one_machine


def called_names(path: Path) -> set[str]:
    calls = [node.func for node in ast.walk(syntax_tree(path)) if isinstance(node, ast.Call)]
    return {func.id for func in calls if isinstance(func, ast.Name)}


def dotted_names(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(syntax_tree(path)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            found.add(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def touches_environment(path: Path) -> bool:
    named = {"os.environ", "os.environb"} & dotted_names(path)
    return bool(named) and not path.as_posix().startswith(ENVIRONMENT_CARRIERS)


def reads_environment(path: Path) -> bool:
    if {"os.getenv", "os.getenvb"} & dotted_names(path):
        return True
    uses = [
        node
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.Attribute | ast.Subscript)
    ]
    return any(ast.unparse(node.value) == "os.environ" for node in uses)


def catches_everything(handler: ast.ExceptHandler) -> bool:
    """Whether any exception ends here; a handler that raises it on only tidies up."""
    last = handler.body[-1]
    if isinstance(last, ast.Raise) and last.exc is None:
        return False
    caught = handler.type
    kinds = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(
        kind is None or (isinstance(kind, ast.Name) and kind.id in {"Exception", "BaseException"})
        for kind in kinds
    )
