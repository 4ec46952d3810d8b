"""Proves that whatever goes wrong with a BLAS, the program continues and multiplies rightly."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.runtime.blas import Route, prepare_blas
from engine.runtime.blas_library import bundled_library
from engine.runtime.blas_shim import find_compiler

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or bundled_library() is None, reason="Linux only"
)
needs_compiler = pytest.mark.skipif(find_compiler() is None, reason="needs a C compiler")

PROGRAM = """
import json, sys
from pathlib import Path
cache, setting, order = sys.argv[1:]
if order == "mlx first":
    import mlx.core as mx
    mx.eval(mx.ones((3, 300)) @ mx.ones((300, 300)))
from engine.runtime.blas import prepare_blas
for _ in range(2 if order == "twice" else 1):
    report = prepare_blas(Path(cache), setting or None, 2)
import mlx.core as mx
right = True
for rows in (1, 3, 40):
    a = mx.array([[(i * 7 + j) % 5 - 2 for j in range(300)] for i in range(rows)])
    b = mx.array([[(i * 3 + j) % 7 - 3 for j in range(300)] for i in range(200)])
    exact = (a[:, None] * b[None]).sum(-1)
    right &= bool(mx.all(a.astype(mx.float32) @ b.astype(mx.float32).T == exact).item())
print(json.dumps([report.route, str(report.library), report.threads, report.notes, right]))
"""


@dataclass(frozen=True, slots=True)
class Result:
    route: Route
    library: str
    threads: int | None
    notes: str


def start(
    cache: Path, setting: str = "", order: str = "", environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    places = os.pathsep.join(place for place in sys.path if place)
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(cache), setting, order],
        env={**os.environ, "PYTHONPATH": places, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> Result:
    out, err = process.communicate(timeout=100)
    assert process.returncode == 0, err
    assert err == ""
    route, library, threads, notes, is_right = json.loads(out)
    assert is_right
    return Result(Route(route), library, threads, "\n".join(notes))


def run(cache: Path, setting: str = "", order: str = "", **environment: str) -> Result:
    return finish(start(cache, setting, order, environment))


def kernels(cache: Path) -> list[Path]:
    return sorted((cache / "blas").glob("*.so"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cache = tmp_path_factory.mktemp("built")
    assert run(cache).route is Route.KERNELS
    return cache


@pytest.fixture
def cache(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "cache"))


@needs_compiler
def test_kernels_once_built_serve_without_compiler_or_proof(cache: Path):
    (before,) = kernels(cache)
    changed_at = before.stat().st_mtime_ns
    result = run(cache, PATH="/nowhere")
    assert (result.route, result.notes) == (Route.KERNELS, "")
    assert result.threads == 2
    assert [path.stat().st_mtime_ns for path in kernels(cache)] == [changed_at]


@needs_compiler
@pytest.mark.parametrize("order", ["mlx first", "twice"])
def test_the_order_of_calls_does_not_matter(cache: Path, order: str):
    assert run(cache, order=order).route is Route.KERNELS


@needs_compiler
def test_two_processes_may_build_at_once(tmp_path: Path):
    processes = [start(tmp_path), start(tmp_path)]
    assert [finish(process).route for process in processes] == [Route.KERNELS] * 2
    assert len(kernels(tmp_path)) == 1


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:3000])


def turn_into_another_machine_s(path: Path) -> None:
    import hashlib

    image = bytearray(path.read_bytes()[:-32])
    image[18:20] = (40).to_bytes(2, "little")
    path.write_bytes(bytes(image) + hashlib.sha256(image).digest())


@needs_compiler
@pytest.mark.parametrize("harm", [damage, cut, turn_into_another_machine_s])
def test_kernels_that_cannot_be_used_are_built_again(cache: Path, harm: Callable[[Path], None]):
    (path,) = kernels(cache)
    harm(path)
    spoiled = path.read_bytes()
    assert run(cache).route is Route.KERNELS
    assert path.read_bytes() != spoiled


def test_without_a_compiler_the_library_serves_alone(tmp_path: Path):
    result = run(tmp_path, PATH="/nowhere")
    assert result.route is Route.LIBRARY
    assert "no C compiler" in result.notes


def test_a_compiler_that_fails_is_reported_and_not_tried_again_that_day(tmp_path: Path):
    broken = tmp_path / "bin/cc"
    broken.parent.mkdir()
    broken.write_text(f"#!/bin/sh\necho x >>{tmp_path}/calls\necho 'cc: no headers' >&2\nexit 1\n")
    broken.chmod(0o755)
    results = [run(tmp_path / "cache", PATH=str(broken.parent)) for _ in range(2)]
    assert [result.route for result in results] == [Route.LIBRARY] * 2
    assert all("no headers" in result.notes for result in results)
    assert (tmp_path / "calls").read_text() == "x\n"


def test_a_cache_that_cannot_be_written_costs_the_kernels_only(tmp_path: Path):
    # A file where the folder should be: root may write into any folder.
    (tmp_path / "blas").write_text("in the way")
    result = run(tmp_path)
    assert result.route is Route.LIBRARY
    assert "cannot be built" in result.notes


@pytest.mark.parametrize("name", ["missing.so", "text.so", "libm.so.6", "~nobody-here/x.so"])
def test_a_named_library_that_is_none_is_reported_and_passed_over(cache: Path, name: str):
    path = cache / name
    if name == "text.so":
        path.write_text("no library")
    result = run(cache, setting=name if name.startswith(("libm", "~")) else str(path))
    assert result.library == str(bundled_library())
    assert name in result.notes


def test_a_named_library_serves(cache: Path):
    copy = Path(shutil.copy(bundled_library(), cache / "libmine.so"))
    assert run(cache, setting=str(copy), PATH="/nowhere").library == str(copy)


@needs_compiler
def test_a_library_that_computes_wrongly_is_passed_over(cache: Path):
    wrong = library_from(cache, "void cblas_sgemm(void) {}")
    result = run(cache, setting=str(wrong))
    assert result.library == str(bundled_library())
    assert "came out wrong" in result.notes


@needs_compiler
def test_a_library_that_crashes_takes_only_the_child_with_it(cache: Path):
    deadly = library_from(cache, "void cblas_sgemm(void) { __builtin_trap(); }")
    result = run(cache, setting=str(deadly))
    assert result.library == str(bundled_library())
    assert "crashed when it was tried" in result.notes


def library_from(folder: Path, text: str) -> Path:
    source = folder / "wrong.c"
    source.write_text(text)
    target = folder / "libwrong.so"
    subprocess.run([find_compiler(), "-shared", "-fPIC", source, "-o", target], check=True)
    return target


def test_off_leaves_mlx_alone(tmp_path: Path):
    assert run(tmp_path, setting="off").route is Route.OFF
    assert list(tmp_path.iterdir()) == []


def test_another_system_needs_no_help(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert prepare_blas(tmp_path, None).route is Route.NATIVE
