"""Tries one BLAS route on MLX itself; ``blas_slot.prove`` runs this module in a child process."""

import sys
from pathlib import Path

from engine.runtime.blas_library import BlasError
from engine.runtime.blas_slot import mlx_library, open_route, serve

ROWS, INNER, COLUMNS = (1, 3, 40), 320, 257
"""The kernels' shapes and the library's."""


def main(words: list[str]) -> None:
    """Serve MLX as ``words`` say and compare its products with exact whole numbers.

    Raises:
        SystemExit: the route fails; the message is for the parent.
    """
    path, shim_path, threads = words
    try:
        _try_route(Path(path), Path(shim_path) if shim_path else None, int(threads))
    except BlasError as error:
        raise SystemExit(str(error)) from error


def _try_route(path: Path, shim_path: Path | None, threads: int) -> None:
    library, shim = open_route(path, shim_path, threads)
    serve(library, shim, mlx_library())
    before = shim.products if shim else 0
    for rows in ROWS:
        _check_product(rows)
    if shim and shim.products < before + len(ROWS):
        raise BlasError("MLX does not call the kernels")


def _check_product(rows: int) -> None:
    import mlx.core as mx

    left = mx.array([[(i * 7 + j) % 5 - 2 for j in range(INNER)] for i in range(rows)])
    right = mx.array([[(i * 3 + j) % 7 - 3 for j in range(INNER)] for i in range(COLUMNS)])
    exact = (left[:, None, :] * right[None, :, :]).sum(-1)
    product = left.astype(mx.float32) @ right.astype(mx.float32).T
    if not bool(mx.all(product == exact).item()):
        raise BlasError("MLX's products came out wrong")


if __name__ == "__main__":
    main(sys.argv[1:])
