"""The repository as the rules see it: its tracked files, modules and syntax trees."""

import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]

PLANNING = tuple(
    Path(name)
    for name in (
        "engine/errors.py",
        "engine/params.py",
        "engine/finish.py",
        "engine/prefill.py",
        "engine/outcome.py",
        "engine/lookup/ngram_index.py",
        "engine/lookup/governor.py",
        "engine/lookup/drafter.py",
        "engine/scheduler/queue.py",
        "engine/scheduler/budget.py",
        "engine/scheduler/preemption.py",
        "engine/scheduler/state.py",
        "engine/scheduler/admission.py",
        "engine/scheduler/tick.py",
        "engine/events.py",
        "engine/scheduler/request.py",
        "engine/scheduler/stats.py",
    )
)
"""Modules that decide on plain values; those that do not exist yet are passed over."""


@cache
def tracked_files() -> tuple[Path, ...]:
    """Every file that git tracks or would track, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    names = sorted(set(filter(None, listed.split("\0"))))
    return tuple(Path(name) for name in names if (ROOT / name).is_file())


def python_files(*folders: str) -> list[Path]:
    """Tracked Python files under ``folders``, relative to the root."""
    return [path for path in tracked_files() if path.suffix == ".py" and path.parts[0] in folders]


def module_name(path: Path) -> str:
    """``engine/text/stops.py`` is ``engine.text.stops``."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def syntax_tree(path: Path) -> ast.Module:
    """The parsed file."""
    return ast.parse((ROOT / path).read_text(encoding="utf-8"), filename=str(path))


def imported_names(path: Path, *, at_run_time: bool = False) -> set[str]:
    """Full dotted names a file imports anywhere, in functions too.

    Args:
        path: the file.
        at_run_time: leave out what is imported for type checking alone.
    """
    names = set()
    for node in nodes(syntax_tree(path), at_run_time=at_run_time):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def nodes(tree: ast.AST, *, at_run_time: bool) -> Iterator[ast.AST]:
    """Every node; ``at_run_time`` without the bodies of ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        types_only = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if not (types_only and at_run_time):
            yield node
            yield from nodes(node, at_run_time=at_run_time)


def imports_any(path: Path, *packages: str) -> set[str]:
    """Imports of ``path`` that are one of ``packages`` or inside one."""
    return {
        name
        for name in imported_names(path)
        if any(name == package or name.startswith(f"{package}.") for package in packages)
    }


@cache
def may_hold_arrays(path: Path) -> bool:
    """Whether a module may hold MLX arrays.

    It may when it imports MLX itself, or at run time through other modules of ours; not when NumPy
    is the one array library it imports itself.
    """
    if imports_any(path, "numpy") and not imports_any(path, "mlx", "mlx_lm"):
        return False
    seen, pending = {path}, [path]
    while pending:
        module = pending.pop()
        if imports_any(module, "mlx", "mlx_lm"):
            return True
        found = {file_of(name) for name in imported_names(module, at_run_time=True)} - seen - {None}
        seen |= found
        pending += found
    return False


def file_of(module: str) -> Path | None:
    """The file of one of our modules; None for any other name."""
    path = Path(*module.split(".")).with_suffix(".py")
    return path if (ROOT / path).is_file() else None
