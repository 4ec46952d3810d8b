"""Tests of engine/models/mlxlm.py; each in a fresh interpreter where the import state matters."""

import subprocess
import sys

import pytest

from engine.errors import UnsupportedModel
from engine.models.mlxlm import knows_family, model_classes


def run_fresh(source: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_loading_a_llama_class_imports_no_transformers_nor_huggingface_hub():
    out = run_fresh(
        "import sys\n"
        "from engine.models.mlxlm import model_classes\n"
        "model, args = model_classes({'model_type': 'llama'})\n"
        "import mlx_lm.sample_utils\n"
        "costly = {'transformers', 'huggingface_hub', 'mlx_lm.utils'}\n"
        "print(model.__module__, args.__name__, *costly & set(sys.modules))"
    )
    assert out.split() == ["mlx_lm.models.llama", "ModelArgs"]


@pytest.mark.slow
def test_the_references_generation_loops_import_and_the_open_file_limit_stays():
    out = run_fresh(
        "import resource\n"
        "before = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "from engine.models.mlxlm import import_generation\n"
        "generate = import_generation()\n"
        "assert callable(generate.generate_step) and generate.BatchGenerator\n"
        "assert resource.setrlimit.__name__ == 'setrlimit'\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE) == before)"
    )
    assert out.split() == ["True"]


@pytest.mark.slow
def test_a_package_that_was_imported_the_plain_way_is_left_alone():
    out = run_fresh(
        "from engine.models.mlxlm import import_generation, import_mlx_lm, kept_file_limit\n"
        "with kept_file_limit():\n"
        "    import mlx_lm\n"
        "load = mlx_lm.load\n"
        "import_mlx_lm()\n"
        "import sys\n"
        "print(sys.modules['mlx_lm'].load is load, import_generation().__name__)"
    )
    assert out.split() == ["True", "mlx_lm.generate"]


@pytest.mark.slow
def test_a_package_whose_parts_do_not_import_alone_gets_the_plain_import():
    out = run_fresh(
        "import engine.models.mlxlm as mlxlm\n"
        "mlxlm._PROBES = ('mlx_lm.no_such_part',)\n"
        "mlxlm.import_mlx_lm()\n"
        "import mlx_lm\n"
        "print(mlx_lm.load.__name__)"
    )
    assert out.split() == ["load"]


@pytest.mark.slow
def test_the_renaming_tables_equal_mlx_lms_own():
    out = run_fresh(
        "import engine.models.mlxlm as mlxlm\n"
        "mlxlm.import_mlx_lm()\n"
        "read = mlxlm._renamings()\n"
        "mlxlm.import_generation()\n"
        "import mlx_lm.utils as utils\n"
        "print(read[0] == utils.MODEL_REMAPPING, bool(read[0]),\n"
        "      read[1] == getattr(utils, 'MODEL_ARCHITECTURE_REMAPPING', {}))"
    )
    assert out.split() == ["True", "True", "True"]


def test_a_model_type_that_mlx_lm_renames_gets_the_renamed_family():
    model, _ = model_classes({"model_type": "mistral"})
    assert model.__module__ == "mlx_lm.models.llama"


@pytest.mark.parametrize(
    "model_type",
    [
        pytest.param("no_such_family", id="an unknown family"),
        pytest.param("cache", id="a module of mlx_lm.models that is no family"),
        pytest.param("../evil", id="a path"),
        pytest.param("models.llama", id="a dotted name"),
        pytest.param(None, id="a missing type"),
        pytest.param(7, id="a number"),
    ],
)
def test_what_is_no_family_is_refused_by_name(model_type):
    with pytest.raises(UnsupportedModel, match=str(model_type)):
        model_classes({"model_type": model_type})


@pytest.mark.parametrize(
    ("config", "known"),
    [
        ({"model_type": "llama"}, True),
        ({"model_type": "mistral"}, True),
        ({"model_type": "lfm2-vl"}, True),
        ({"model_type": "bert"}, False),
        ({"model_type": "../llama"}, False),
        ({}, False),
    ],
)
def test_a_family_is_known_by_its_module_renamed_or_not(config, known):
    assert knows_family(config) is known


def test_a_look_up_of_a_family_imports_neither_mlx_nor_mlx_lm():
    out = run_fresh(
        "import sys\n"
        "from engine.models.mlxlm import knows_family\n"
        "assert knows_family({'model_type': 'llama'})\n"
        "print(*{'mlx_lm', 'mlx.core'} & set(sys.modules))"
    )
    assert out.split() == []
