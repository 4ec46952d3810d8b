"""The starter in the forms its peers run best, made once in a cache folder of their own.

starter     4-bit as converted, which mlxcel turns into what is fastest here
dense       the same weights as dense float32, for mlx-lm on equal terms
four_bit    4-bit with float32 scales: mlx-lm's best 4-bit form on a CPU
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import platformdirs
from mlx.utils import tree_flatten

from engine.models.load import LoadOptions, WeightForm, load
from engine.models.starter import ensure_starter


@dataclass(frozen=True, slots=True)
class StarterWeights:
    """Folders that mlx-lm loads."""

    starter: Path
    dense: Path
    four_bit: Path


def starter_weights(home: Path | None = None) -> StarterWeights:
    """The folders, made if they are not there."""
    home = home or platformdirs.user_cache_path("mlxcel-benchmarks")
    starter = ensure_starter(home)
    dense = _made(home / "dense", starter, WeightForm.DENSE)
    four_bit = _made(home / "four-bit-float32", starter, WeightForm.QUANTIZED)
    return StarterWeights(starter, dense, four_bit)


def _made(folder: Path, starter: Path, form: WeightForm) -> Path:
    if (folder / "model.safetensors").exists():
        return folder
    loaded = load(starter, LoadOptions(dtype="float32", form=form))
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(starter / name, folder / name)
    config = json.loads((starter / "config.json").read_text())
    config["torch_dtype"] = "float32"
    if form is WeightForm.DENSE:
        config.pop("quantization", None)
    (folder / "config.json").write_text(json.dumps(config))
    weights = dict(tree_flatten(loaded.model.parameters()))
    mx.save_safetensors(str(folder / "part.safetensors"), weights, metadata={"format": "mlx"})
    (folder / "part.safetensors").rename(folder / "model.safetensors")
    return folder
