"""Whether prompt lookup writes the very text of plain decoding: twenty prompts, four samplers.

    python -m benchmarks.lookup_identity MODEL_FOLDER [--tokens 48]

A difference is shown with its gap: the distance of the two choices' scores in logits, after
penalties and, where tokens are drawn, after the position's noise. Up to NEAR_TIE it is a tie that a
wider forward's other order of sums may turn; more is a fault, and the exit status 1.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from engine.events import Delta, Done
from engine.finish import FinishCause
from engine.lookup.stats import LookupStats
from engine.params import LookupPolicy, SamplingParams, SequenceParams, SpeculationParams
from engine.session import Session

if TYPE_CHECKING:
    from engine.engine import Engine
    from engine.models.load import LoadedModel

NEAR_TIE = 1e-3
"""Logits. float32 forwards of width 1 and 8 of the starter differ by about a tenth of it."""

CODE = "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n    return a - b\n\n\n"
ROWS = "| name | age |\n|---|---|\n| Ann | 31 |\n| Bob | 42 |\n| Cem | 27 |\n"
RECORD = '{"id": 1, "name": "Ann", "tags": ["a", "b"], "active": true}\n'
POEM = "The fog comes\non little cat feet.\n\nIt sits looking\nover harbor and city\n"
CJK = "今日は天気がいいので、散歩に行きました。公園には花が咲いていました。\n"
EMOJI = "🌊 waves, 🌲 trees, 🏔️ peaks, 🌵 cacti, 👩‍👩‍👧 family\n"

PROMPTS = {
    "copy a sentence": "Repeat: The quick brown fox jumps over the lazy dog.\n" * 2 + "Repeat: The",
    "copy a poem": f"{POEM}\nOnce more:\n\n{POEM}\nOnce more:\n\n",
    "copy numbers": "3 1 4 1 5 9 2 6 5 3 5\n" * 3 + "3 1 4",
    "JSON, next record": RECORD + RECORD.replace("1", "2") + '{"id": 3,',
    "JSON, one field": f"Before:\n{RECORD}After:\n{RECORD[:-6]}false}}\nAgain:\n{{",
    "JSON, nested": '{"a": {"x": 1, "y": 2}, "b": {"x": 1, "y": 2}, "c": {',
    "code, same again": f"{CODE}# The same again:\n\n{CODE}# The same again:\n\n",
    "code, next function": f"{CODE}def mul(a, b):\n",
    "code, rename": f"# old\n{CODE}# new\n{CODE.replace('a', 'x')}# old\n",
    "code, a loop": "for i in range(10):\n    print(i)\n\nfor j in range(10):\n    print(",
    "list, numbered": "1. apples\n2. pears\n3. plums\n4. ",
    "list, bullets": "- red\n- green\n- blue\n- red\n- green\n- ",
    "table": f"{ROWS}\nThe same table, sorted by age:\n\n| name | age |\n|---|---|\n",
    "prose, story": "Once upon a time, in a village by the sea, there lived a",
    "prose, reply": "Dear Mr. Holm,\n\nThank you for your letter of 3 March. I am sorry to",
    "prose, facts": "Water boils at 100 degrees Celsius. At higher altitudes, water boils at",
    "CJK, copy": CJK * 2 + "今日は",
    "CJK, mixed": "北京 (Beijing), 上海 (Shanghai), 广州 (Guangzhou), 北京 (Beijing), 上海 (",
    "emoji, copy": EMOJI * 2 + "🌊 waves, 🌲",
    "emoji, more": "😀 = happy, 😢 = sad, 😡 = angry, 😀 = happy, 😢 =",
}  # fmt: skip

PENALTIES = {"repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.1}
SAMPLERS = {
    "greedy": SamplingParams(seed=1),
    "greedy, penalties": SamplingParams(seed=1, **PENALTIES),  # type: ignore[arg-type]
    "seeded": SamplingParams(temperature=0.8, seed=7),
    "seeded, penalties": SamplingParams(temperature=0.8, seed=7, **PENALTIES),  # type: ignore[arg-type]
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt under one sampler, with and without prompt lookup."""

    prompt: str
    sampler: str
    stats: LookupStats
    tokens: int
    differs_at: int | None = None
    gap: float = 0.0
    """In logits, between the two choices at the first difference."""

    @property
    def is_fault(self) -> bool:
        """Whether the texts differ by more than a tie."""
        return self.differs_at is not None and not self.gap <= NEAR_TIE

    @property
    def line(self) -> str:
        """For people."""
        line = f"{self.prompt}, {self.sampler}: {self.tokens} tokens, {self.stats.accepted} of "
        line += f"{self.stats.proposed} drafted ones right"
        if self.differs_at is None:
            return line
        return f"{line}; DIFFERS at {self.differs_at}, gap {self.gap:.2e} logits"


def compare(
    loaded: "LoadedModel", engine: "Engine", prompt: str, sampler: str, *, tokens: int
) -> Comparison:
    """Decode one prompt both ways."""
    params = SequenceParams(
        loaded.tokenizer.encode(PROMPTS[prompt], add_bos=True),
        SAMPLERS[sampler],
        max_tokens=tokens,
    )
    plain, _ = decode(engine, params, speculate=False, end_id=min(loaded.eos_ids))
    ours, stats = decode(engine, params, speculate=True, end_id=min(loaded.eos_ids))
    if ours == plain:
        return Comparison(prompt, sampler, stats, len(plain))
    at = next(
        (i for i, (a, b) in enumerate(zip(ours, plain, strict=False)) if a != b),
        min(len(ours), len(plain)),
    )
    gap = choice_gap(loaded, params, plain[:at], ours[at : at + 1], plain[at : at + 1])
    return Comparison(prompt, sampler, stats, len(plain), at, gap)


def decode(
    engine: "Engine", params: SequenceParams, *, speculate: bool, end_id: int
) -> tuple[list[int], LookupStats]:
    """Tokens of one answer (an end token included), and what prompt lookup did."""
    speculation = SpeculationParams(policy=LookupPolicy.GRADED) if speculate else None
    session = Session(engine, builds_kernels=False)
    tokens: list[int] = []
    stats = LookupStats()
    for event in session.generate(replace(params, speculation=speculation)):
        if isinstance(event, Delta):
            tokens += event.tokens
        elif isinstance(event, Done):
            stats = event.lookup or stats
            if event.finish is FinishCause.EOS:
                tokens.append(end_id)
    return tokens, stats


def choice_gap(
    loaded: "LoadedModel",
    params: SequenceParams,
    written: Sequence[int],
    ours: Sequence[int],
    plain: Sequence[int],
) -> float:
    """Distance of two choices' scores after ``written``; infinite where one text just ends."""
    import mlx.core as mx

    from engine.sampling.plan import token_scores
    from engine.sampling.row_sampler import RowSampler

    if not ours or not plain:
        return float("inf")
    sampling = params.sampling
    assert sampling.seed is not None
    sampler = RowSampler(
        sampling,
        seed=sampling.seed,
        choice=params.choice,
        vocab_size=loaded.facts.vocab_size,
        eos_ids=loaded.eos_ids,
        prompt_tokens=len(params.prompt_ids),
    )
    ids = [*params.prompt_ids, *written]
    scores = token_scores(sampler, ids, loaded.model(mx.array([ids]))[0, -1])
    return float(mx.abs(scores[ours[0]] - scores[plain[0]]).item())  # type: ignore[arg-type]


def comparisons(folder: Path, *, tokens: int) -> Iterator[Comparison]:
    """All prompts under all samplers."""
    from engine.engine import Engine
    from engine.models.load import LoadOptions, WeightForm, load

    loaded = load(folder, LoadOptions(dtype="float32", form=WeightForm.DENSE))
    engine = Engine(loaded)
    for prompt in PROMPTS:
        for sampler in SAMPLERS:
            yield compare(loaded, engine, prompt, sampler, tokens=tokens)


def main() -> int:
    """Compare everything; 1 where a text differs by more than a tie."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tokens", type=int, default=48)
    options = parser.parse_args()
    import platformdirs

    from engine.runtime.blas import prepare_blas
    from engine.runtime.device import prepare_cpu

    prepare_blas(platformdirs.user_cache_path("mlxcel"), None)
    prepare_cpu()
    done = []
    for one in comparisons(options.folder, tokens=options.tokens):
        print(one.line, flush=True)
        done.append(one)
    same = sum(one.differs_at is None for one in done)
    faults = sum(one.is_fault for one in done)
    accepted = sum(one.stats.accepted for one in done)
    print(
        f"{len(done)} answers: {same} the same, {len(done) - same - faults} near-ties, "
        f"{faults} faults; {accepted} of {sum(one.stats.proposed for one in done)} drafted "
        f"tokens were right"
    )
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
