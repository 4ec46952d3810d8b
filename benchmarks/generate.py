"""mlxcel generate against mlx_lm.generate: interleaved pairs, own process each, medians.

    python -m benchmarks.generate                  # everything, about 15 minutes on two cores
    python -m benchmarks.generate --pairs 3 --only same-weights
    python -m benchmarks.generate --smoke          # one short pair, for make check-gpu

Modes
    same-weights   dense float32 and the same BLAS on both sides, and a null run (mlxcel twice)
    as-installed   mlx-lm as pip installs it, on the 4-bit starter with float32 scales
    start          process start to the first token of a 16-token prompt
    host           thread CPU time of a decode step on a 30-layer, hidden-64 random llama
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.host_work import host_table
from benchmarks.process import Figures, medians, run
from benchmarks.starter_weights import StarterWeights, starter_weights

PROMPT = (
    "The history of the lighthouse begins with fires built on hilltops. Later they were placed on "
    "platforms so that ships could see them from further away, and the towers grew with the ports. "
)
Variant = Callable[[], Figures]


class Commands:
    """Commands for one prompt length and answer length."""

    def __init__(self, weights: StarterWeights, folder: Path, prompt_tokens: int, new: int) -> None:
        from engine.text.tokenizer import Tokenizer

        tokenizer = Tokenizer.from_folder(weights.starter)
        ids = tokenizer.encode(PROMPT * 40)[:prompt_tokens]
        self._text = tokenizer.decode(ids)
        ids = list(tokenizer.encode(self._text))
        assert len(ids) == prompt_tokens, "the prompt must survive decoding"
        self._ids_file = folder / f"prompt-{prompt_tokens}.json"
        self._ids_file.write_text(json.dumps(ids))
        self._cache = folder.parent
        self._new = str(new)
        self._weights = weights

    def mlxcel(self, *options: str, model: Path | None = None) -> Figures:
        """`mlxcel generate`."""
        model = model or self._weights.starter
        flags = ["--raw", "--json", "--ignore-eos", "-n", self._new, "-m", str(model), *options]
        command = [sys.executable, "-m", "mlxcel_cli", "generate", *flags, "-p", self._text]
        return run(command)

    def mlx_lm(self, model: Path, *, same_blas: bool) -> Figures:
        """`mlx_lm.generate`."""
        blas = ["--blas", str(self._cache)] if same_blas else []
        return run(
            [
                sys.executable,
                "-m",
                "benchmarks.peer_mlx_lm",
                str(model),
                str(self._ids_file),
                self._new,
                *blas,
            ]
        )


def interleaved(variants: dict[str, Variant], pairs: int) -> dict[str, list[Figures]]:
    """Each variant ``pairs`` times in turn, after one uncounted round."""
    runs: dict[str, list[Figures]] = {name: [] for name in variants}
    for turn in range(pairs + 1):
        for name, variant in variants.items():
            figures = variant()
            if turn:
                runs[name].append(figures)
    return runs


def report(title: str, runs: dict[str, list[Figures]]) -> None:
    """A table of medians, and each variant over the last one, pair by pair."""
    print(f"\n## {title}\n")
    print("| variant | prefill tok/s | decode tok/s | first token s | peak MiB |")
    print("|---|--:|--:|--:|--:|")
    for name, figures in runs.items():
        m = medians(figures)
        print(
            f"| {name} | {m.prompt_per_second:.1f} | {m.predicted_per_second:.2f} "
            f"| {m.first_token_s:.2f} | {m.peak_bytes / 2**20:.0f} |"
        )
    base_name, base = list(runs.items())[-1]
    for name, figures in list(runs.items())[:-1]:
        pairs = list(zip(figures, base, strict=True))
        decode = sorted(a.predicted_per_second / b.predicted_per_second for a, b in pairs)
        prefill = sorted(a.prompt_per_second / b.prompt_per_second for a, b in pairs)
        first = sorted(a.first_token_s / b.first_token_s for a, b in pairs)
        print(
            f"\n{name} over {base_name}: decode {_spread(decode)}, prefill {_spread(prefill)}, "
            f"first token {_spread(first)}, peak "
            f"{medians(figures).peak_bytes / medians(base).peak_bytes:.3f}"
        )


def _spread(ratios: list[float]) -> str:
    return f"{ratios[len(ratios) // 2]:.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})"


def main() -> None:
    """Run the asked modes and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", choices=("same-weights", "as-installed", "start", "host"))
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    if options.only in (None, "host") or options.smoke:
        print(host_table(steps=20 if options.smoke else 150))
    if options.only == "host":
        return
    weights = starter_weights()
    home = weights.starter.parent
    with tempfile.TemporaryDirectory(dir=home.parent) as folder:
        pairs = 1 if options.smoke else options.pairs
        long = Commands(weights, Path(folder), 256, 16 if options.smoke else 128)
        if options.only in (None, "same-weights"):
            report("Same dense float32 weights and BLAS", same_weights(long, weights, pairs))
        if options.only in (None, "as-installed") and not options.smoke:
            report("mlx-lm as pip installs it, 4-bit", as_installed(long, weights, pairs))
        if options.only in (None, "start") and not options.smoke:
            short = Commands(weights, Path(folder), 16, 2)
            report("Process start to first token, 16-token prompt", start(short, weights, pairs))


def same_weights(
    commands: Commands, weights: StarterWeights, pairs: int
) -> dict[str, list[Figures]]:
    """Equal terms, and mlxcel twice as the noise floor."""
    return interleaved(
        {
            "mlxcel": lambda: commands.mlxcel(model=weights.dense),
            "mlxcel (null run)": lambda: commands.mlxcel(model=weights.dense),
            "mlx-lm": lambda: commands.mlx_lm(weights.dense, same_blas=True),
        },
        pairs,
    )


def as_installed(
    commands: Commands, weights: StarterWeights, pairs: int
) -> dict[str, list[Figures]]:
    """What a user of each gets from the 4-bit starter."""
    return interleaved(
        {
            "mlxcel": commands.mlxcel,
            "mlx-lm": lambda: commands.mlx_lm(weights.four_bit, same_blas=False),
        },
        pairs,
    )


def start(commands: Commands, weights: StarterWeights, pairs: int) -> dict[str, list[Figures]]:
    """Time to the first token with everything in the disk cache."""
    return interleaved(
        {
            "mlxcel": lambda: commands.mlxcel(model=weights.dense),
            "mlx-lm": lambda: commands.mlx_lm(weights.dense, same_blas=True),
        },
        pairs,
    )


if __name__ == "__main__":
    main()
