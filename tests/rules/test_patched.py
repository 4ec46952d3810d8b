"""What is replaced or subclassed inside mlx and mlx-lm: each private name that a release may drop.

A test that fails here names what is gone, where elsewhere a run would break. Widen the upper bound
in `pyproject.toml` only when these pass with the new release.
"""

import importlib.metadata
import importlib.util
import inspect
import re
import sys
import tomllib
from itertools import chain
from pathlib import Path

import mlx.core as mx
import pytest
from packaging.requirements import Requirement

from engine.models.mlxlm import import_mlx_lm
from engine.runtime.elf import slot_address
from tests.rules.tree import ROOT

PATCHED = ("mlx", "mlx-lm")

NAMES = {
    "mlx_lm.models.base": (
        "scaled_dot_product_attention",  # replaced: engine/models/cpu_forms.py
        "create_attention_mask",  # called by the families with our layers: engine/kv/layer.py
        "create_ssm_mask",
    ),
    "mlx_lm.models.activations": ("swiglu",),  # replaced: engine/models/cpu_forms.py
    "mlx_lm.models.llama": ("scaled_dot_product_attention", "swiglu"),  # where they are replaced
    "mlx_lm.models.cache": (
        # known by name: engine/kv/choose.py
        "KVCache", "RotatingKVCache", "ArraysCache", "CacheList", "make_prompt_cache",
    ),
}  # fmt: skip

IN_SOURCE = {
    "utils.py": (r"^MODEL_REMAPPING = \{", "read without the import: engine/models/mlxlm.py"),
    "generate.py": (r"^def generate_step\(", "the reference: engine/models/reference.py"),
}


@pytest.fixture(scope="module")
def mlx_lm_folder() -> Path:
    spec = importlib.util.find_spec("mlx_lm")
    assert spec is not None
    (place,) = spec.submodule_search_locations
    return Path(place)


def requirements() -> dict[str, list[Requirement]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: dict[str, list[Requirement]] = {}
    for text in chain(project["dependencies"], *project["optional-dependencies"].values()):
        one = Requirement(text)
        found.setdefault(one.name, []).append(one)
    return found


@pytest.mark.parametrize("package", PATCHED)
def test_a_patched_package_is_bound_below_its_next_minor_and_the_tested_one_is_inside(package):
    found = requirements()[package]
    uppers = [one.version for req in found for one in req.specifier if one.operator == "<"]
    assert len(uppers) == len(found), f"{package} has no upper bound"
    installed = importlib.metadata.version(package)
    assert all(req.specifier.contains(installed) for req in found)
    major, minor = map(int, installed.split(".")[:2])
    assert set(uppers) == {f"{major}.{minor + 1}"}


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in NAMES.items() for name in names]
)
def test_mlx_lm_still_has(module: str, name: str):
    import_mlx_lm()
    assert hasattr(importlib.import_module(module), name), f"{module}.{name} is gone"


def test_the_functions_that_are_replaced_take_what_ours_take():
    import_mlx_lm()
    from mlx_lm.models import activations, base

    from engine.models import cpu_forms

    for ours, theirs in (
        (cpu_forms.attention, base.scaled_dot_product_attention),
        (cpu_forms.swiglu, activations.swiglu),
    ):
        taken = [list(inspect.signature(one).parameters) for one in (ours, theirs)]
        assert taken[0] == taken[1]


def test_the_state_cache_is_still_a_list_of_arrays_called_cache():
    """`engine.kv.state.StateLayer` is a subclass that sets it anew for each forward."""
    import_mlx_lm()
    from mlx_lm.models.cache import ArraysCache

    cache = ArraysCache(2)
    assert cache.cache == [None, None]
    cache.cache = ["one", "two"]
    assert (cache[0], cache[1]) == ("one", "two")
    cache[1] = "three"
    assert cache.cache == ["one", "three"]
    assert (cache.lengths, cache.left_padding) == (None, None)


def test_the_families_ask_our_layers_for_a_mask_as_ours_answer():
    import_mlx_lm()
    from mlx_lm.models.base import create_attention_mask

    from engine.kv.dense import DenseLayer

    class Asked:
        def make_mask(self, *args, **named):
            inspect.signature(DenseLayer.make_mask).bind(self, *args, **named)
            return "mask"

    assert create_attention_mask(mx.zeros((1, 2, 4)), Asked(), window_size=3) == "mask"


@pytest.mark.parametrize("file", IN_SOURCE)
def test_mlx_lm_s_source_still_says(file: str, mlx_lm_folder: Path):
    pattern, why = IN_SOURCE[file]
    text = (mlx_lm_folder / file).read_text("utf-8")
    assert re.search(pattern, text, re.MULTILINE), f"{file} has no {pattern}: {why}"


def test_the_package_s_parts_import_without_its_init(mlx_lm_folder: Path):
    """Else each start pays for transformers: `engine.models.mlxlm` falls back to that."""
    import_mlx_lm()
    init = (mlx_lm_folder / "__init__.py").read_text("utf-8")
    assert "import" in init, "mlx_lm/__init__ costs nothing any more: import it plainly"
    from mlx_lm.models import base

    assert base.__name__ == "mlx_lm.models.base"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the slot is an ELF file's")
def test_mlx_s_library_still_calls_a_blas_through_a_slot_that_can_be_written():
    from engine.runtime.blas_slot import SYMBOL, mlx_library

    if mx.default_device() != mx.Device(mx.cpu):
        pytest.skip("on a GPU no BLAS is replaced")
    assert slot_address(mlx_library(), SYMBOL) > 0
