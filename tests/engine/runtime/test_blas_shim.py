"""Proves the kernels against NumPy, and their cache against damage."""

import ctypes
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.runtime.blas_library import (
    BlasError,
    bundled_library,
    check_sgemm,
    function_address,
    open_library,
)
from engine.runtime.blas_shim import (
    SOURCE,
    Shim,
    compile_shim,
    find_compiler,
    is_sound,
    load_shim,
    stamp,
)

pytestmark = pytest.mark.skipif(
    bundled_library() is None or find_compiler() is None, reason="needs OpenBLAS and a C compiler"
)

ROW_MAJOR, COLUMN_MAJOR, PLAIN, TRANSPOSED = 101, 102, 111, 112
Sgemm = Callable[..., None]


def build(folder: Path, threads: int) -> Shim:
    compiler = find_compiler()
    assert compiler is not None
    path = folder / "shim.so"
    compile_shim(compiler, path)
    library = bundled_library()
    assert library is not None
    return load_shim(path, open_library(library), threads)


@pytest.fixture(scope="module", params=[1, 3], ids=["one thread", "three threads"])
def sgemm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Sgemm:
    shim = build(tmp_path_factory.mktemp("shim"), request.param)
    integers, pointer = [ctypes.c_int] * 6, ctypes.c_void_p
    signature = ctypes.CFUNCTYPE(
        None, *integers, ctypes.c_float, pointer, ctypes.c_int, pointer, ctypes.c_int,
        ctypes.c_float, pointer, ctypes.c_int,
    )  # fmt: skip
    return signature(shim.sgemm)


def random(shape: tuple[int, int], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Layout:
    """How the operands lie in memory, and the scalars."""

    order: int = ROW_MAJOR
    turns_a: bool = False
    turns_b: bool = True
    pads: tuple[int, int, int] = (0, 0, 0)
    alpha: float = 1.0
    beta: float = 0.0


PLAIN_LAYOUT = Layout()
"""A linear layer's."""


def stored(x: np.ndarray, layout: Layout, pad: int, *, turn: bool = False) -> np.ndarray:
    rows = x.T if turn != (layout.order == COLUMN_MAJOR) else x
    kept = np.full((rows.shape[0], rows.shape[1] + pad), np.nan, np.float32)
    kept[:, : rows.shape[1]] = rows
    return kept


def call(
    sgemm: Sgemm, a: np.ndarray, b: np.ndarray, c: np.ndarray, layout: Layout = PLAIN_LAYOUT
) -> np.ndarray:
    """C of sgemm for logical A [m, k], B [k, n], C [m, n]; what pads C stays as it was."""
    (m, k), n = a.shape, b.shape[1]
    kept_a = stored(a, layout, layout.pads[0], turn=layout.turns_a)
    kept_b = stored(b, layout, layout.pads[1], turn=layout.turns_b)
    kept_c = stored(c, layout, layout.pads[2])
    flags = [TRANSPOSED if turn else PLAIN for turn in (layout.turns_a, layout.turns_b)]
    (pa, lda), (pb, ldb), (pc, ldc) = (
        (x.ctypes.data, max(1, x.shape[1])) for x in (kept_a, kept_b, kept_c)
    )
    scalars = (layout.alpha, layout.beta)
    sgemm(layout.order, *flags, m, n, k, scalars[0], pa, lda, pb, ldb, scalars[1], pc, ldc)
    width = kept_c.shape[1] - layout.pads[2]
    assert np.isnan(kept_c[:, width:]).all()
    inner = kept_c[:, :width]
    return np.array(inner.T if layout.order == COLUMN_MAJOR else inner)


few = st.integers(0, 18)
sizes = st.tuples(few, st.integers(0, 200), st.sampled_from([0, 1, 63, 255, 256, 257, 300, 640]))


layouts = st.builds(
    Layout,
    order=st.sampled_from([ROW_MAJOR, COLUMN_MAJOR]),
    turns_a=st.booleans(),
    turns_b=st.booleans(),
    pads=st.tuples(*[st.integers(0, 3)] * 3),
    alpha=st.sampled_from([0.0, 1.0, -0.5]),
    beta=st.sampled_from([0.0, 1.0, 0.25]),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes, st.booleans(), layouts)
def test_every_arrangement_gives_the_product_numpy_gives(
    sgemm: Sgemm, size: tuple[int, int, int], is_turned: bool, layout: Layout
):
    m, n, k = size
    m, n = (n, m) if is_turned else (m, n)
    a, b, c = random((m, k), 1), random((k, n), 2), random((m, n), 3)
    wanted = layout.alpha * (a.astype(float) @ b.astype(float)) + layout.beta * c
    np.testing.assert_allclose(call(sgemm, a, b, c, layout), wanted, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("shape", [(130, 301, 257), (301, 130, 257), (19, 901, 300)], ids=str)
@pytest.mark.parametrize("turns", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("order", [ROW_MAJOR, COLUMN_MAJOR])
def test_products_of_the_library_are_right_when_threads_share_them(
    sgemm: Sgemm, shape: tuple[int, int, int], turns: tuple[bool, bool], order: int
):
    m, n, k = shape
    a, b, c = random((m, k), 1), random((k, n), 2), random((m, n), 3)
    layout = Layout(order, *turns, pads=(1, 2, 3), alpha=2.0, beta=0.5)
    wanted = 2.0 * (a.astype(float) @ b.astype(float)) + 0.5 * c
    np.testing.assert_allclose(call(sgemm, a, b, c, layout), wanted, rtol=1e-4, atol=5e-4)


@pytest.mark.parametrize("rows", [1, 2, 5, 16])
def test_large_products_are_right_when_threads_share_them(sgemm: Sgemm, rows: int):
    a, b = random((rows, 640), 1), random((640, 3001), 2)
    got = call(sgemm, a, b, np.zeros((rows, 3001)))
    np.testing.assert_allclose(got, a @ b, rtol=1e-4, atol=2e-4)


def test_a_row_s_result_does_not_depend_on_its_neighbours(sgemm: Sgemm):
    a, b = random((16, 576), 1), random((576, 1536), 2)
    products = [call(sgemm, a[:rows], b, np.zeros((rows, 1536))) for rows in range(1, 17)]
    for product in products:
        np.testing.assert_array_equal(product, products[-1][: len(product)])


def test_beta_zero_does_not_read_the_output(sgemm: Sgemm):
    a, b = random((1, 512), 1), random((512, 700), 2)
    output = np.full((1, 700), np.nan, np.float32)
    got = call(sgemm, a, b, output)
    np.testing.assert_allclose(got, a @ b, rtol=1e-4, atol=2e-4)


def test_not_a_number_in_a_weight_reaches_only_its_column(sgemm: Sgemm):
    a, b = random((2, 512), 1), random((512, 300), 2)
    b[5, 7] = np.nan
    got = call(sgemm, a, b, np.zeros((2, 300)))
    assert np.argwhere(np.isnan(got)).tolist() == [[0, 7], [1, 7]]


def test_two_callers_at_once_both_get_their_product(sgemm: Sgemm):
    from concurrent.futures import ThreadPoolExecutor

    a, b = random((4, 640), 1), random((640, 2000), 2)
    alone = call(sgemm, a, b, np.zeros((4, 2000)))

    def again(_: int) -> np.ndarray:
        return call(sgemm, a, b, np.zeros((4, 2000)))

    with ThreadPoolExecutor(4) as pool:
        for product in pool.map(again, range(40)):
            np.testing.assert_array_equal(product, alone)


def test_every_instruction_set_of_this_machine_gives_the_product(tmp_path: Path):
    library = open_library(bundled_library())
    for disabled in ([], ["avx512f"], ["avx512f", "avx2"]):
        variant = SOURCE.read_text()
        for name in disabled:
            variant = variant.replace(f'__builtin_cpu_supports("{name}")', "0")
        source, target = tmp_path / "variant.c", tmp_path / f"{len(disabled)}.so"
        source.write_text(variant)
        compile_shim(find_compiler(), target, source)
        check_sgemm(load_shim(target, library, 1).sgemm)


def test_a_damaged_file_is_not_loaded(tmp_path: Path):
    build(tmp_path, 1)
    path = tmp_path / "shim.so"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    path.write_bytes(content)
    assert not is_sound(path)
    with pytest.raises(BlasError, match="damaged"):
        load_shim(path, open_library(bundled_library()), 1)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", bytes(100)], ids=["empty", "short", "zeros"])
def test_a_cut_file_is_not_sound(tmp_path: Path, content: bytes):
    path = tmp_path / "shim.so"
    path.write_bytes(content)
    assert not is_sound(path)


def test_a_file_of_another_machine_is_refused(tmp_path: Path):
    build(tmp_path, 1)
    image = bytearray((tmp_path / "shim.so").read_bytes()[:-32])
    image[18:20] = (40).to_bytes(2, "little")  # 32-bit Arm
    other = tmp_path / "other.so"
    other.write_bytes(bytes(image) + hashlib.sha256(image).digest())
    with pytest.raises(BlasError, match="cannot be loaded"):
        load_shim(other, open_library(bundled_library()), 1)


def test_what_the_compiler_says_is_reported(tmp_path: Path):
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'fatal: no such host' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(BlasError, match="fatal: no such host"):
        compile_shim(broken, tmp_path / "shim.so")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cc"]


def test_a_stamp_changes_with_the_file_it_names(tmp_path: Path):
    library = tmp_path / "libblas.so"
    library.write_bytes(b"one")
    first = stamp(library)
    library.write_bytes(b"three")
    assert stamp(library) != first


def test_products_are_counted(tmp_path: Path):
    shim = build(tmp_path, 1)
    before = shim.products
    check_sgemm(function_address(shim.handle.cblas_sgemm))
    assert shim.products == before + 4
