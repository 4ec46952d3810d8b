"""Compares greedy answers and logits with mlx-lm's own, on the same weights and the same BLAS.

Run: python -m benchmarks.parity_starter MODEL_FOLDER [--prompts 20] [--tokens 128] [--json]
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

CHUNK_TOKENS = 64
"""Small enough that some prompts are read in several chunks."""

CHATS = (
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain in two sentences why the sky is blue.",
    "List five fruits, one a line.",
    "Translate into French: Where is the railway station?",
    "What is 17 times 3? Show the steps.",
    "Who wrote Romeo and Juliet, and when?",
    "Give me a recipe for pancakes.",
    "Tell a short story about a robot that learns to paint.",
    "Summarise: The quick brown fox jumps over the lazy dog. " * 12,
)

TEXTS = (
    "Once upon a time",
    "def fibonacci(n):\n    ",
    "The three laws of thermodynamics are",
    "1, 2, 3, 4,",
    "Dear Sir or Madam,\n\nI am writing to",
    '{"name": "Ada", "born": 1815, "',
    "| country | capital |\n|---|---|\n| Italy | Rome |\n|",
    "日本の首都は",
    "A",
    "In mathematics, a prime number is a natural number greater than 1. " * 10,
)


@dataclass(frozen=True)
class Comparison:
    """One prompt, answered by both."""

    prompt: str
    prompt_tokens: int
    tokens: int
    same_text: bool
    same_logits: bool | None
    """Whether every step's logits were equal to the bit; None: not compared."""
    ours: str
    theirs: str


def main() -> int:
    """Compare and say so; the exit status counts the prompts that differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--prompts", type=int, default=len(CHATS) + len(TEXTS))
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--logits", type=int, default=64, help="steps compared to the bit")
    parser.add_argument("--cache", type=Path, help="where the BLAS kernels are kept")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        done = list(compare(asked, asked.cache or Path(scratch)))
    differing = [one for one in done if not one.same_text or one.same_logits is False]
    if asked.json:
        print(json.dumps([asdict(one) for one in done]))
        return len(differing)
    for one in done:
        text = "same" if one.same_text else f"OURS {one.ours!r} THEIRS {one.theirs!r}"
        bits = {None: "", True: ", logits to the bit", False: ", LOGITS DIFFER"}[one.same_logits]
        print(
            f"{one.tokens:4} tokens after {one.prompt_tokens:4}: {one.prompt[:32]!r}: {text}{bits}"
        )
    seconds = time.perf_counter() - started
    print(f"{len(done) - len(differing)} of {len(done)} the same in {seconds:.0f} s")
    return len(differing)


def compare(asked: argparse.Namespace, cache: Path) -> Iterator[Comparison]:
    """Answer the prompts with both; the first one's logits are compared too.

    Texts are held against mlx-lm as it is, logits against its path on the same functions: once
    on its own, once on ours.
    """
    from engine.runtime.blas import prepare_blas

    print(f"BLAS: {prepare_blas(cache, None)}", file=sys.stderr)
    from engine.models.cpu_forms import stock_forms
    from engine.models.load import load

    loaded = load(asked.model)
    for index, (name, ids) in enumerate(prompts(loaded, asked.prompts)):
        ours = our_text(loaded, ids, asked.tokens)
        same = None
        if index == 0 and asked.logits:
            same = same_logits(loaded, ids, asked.logits)
        with stock_forms():
            theirs = their_text(loaded, ids, asked.tokens)
            if same is not None:
                same = same and same_logits(loaded, ids, asked.logits)
        yield Comparison(name, len(ids), ours[1], ours[0] == theirs, same, ours[0], theirs)


def prompts(loaded: Any, count: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Chats and plain texts in turn."""
    pairs = zip(CHATS, TEXTS, strict=True)
    for index, text in enumerate([text for pair in pairs for text in pair][:count]):
        if index % 2 == 0 and loaded.template is not None:
            rendered = loaded.template.render([{"role": "user", "content": text}])
            yield text, loaded.tokenizer.encode_rendered(rendered)
        else:
            yield text, loaded.tokenizer.encode(text, add_bos=True)


def our_text(loaded: Any, ids: tuple[int, ...], tokens: int) -> tuple[str, int]:
    """What a session writes, and how many tokens it took."""
    from engine.engine import Engine
    from engine.events import Delta
    from engine.params import SequenceParams
    from engine.prefill import PrefillPacer
    from engine.session import Session

    session = Session(Engine(loaded), pacer=PrefillPacer(CHUNK_TOKENS))
    events = session.generate(SequenceParams(ids, max_tokens=tokens))
    deltas = [event for event in events if isinstance(event, Delta)]
    return "".join(one.text for one in deltas), sum(len(one.tokens) for one in deltas)


def their_text(loaded: Any, ids: tuple[int, ...], tokens: int) -> str:
    """What mlx-lm's generate_step writes."""
    from engine.models.reference import reference_tokens

    written = reference_tokens(
        loaded.model, ids, max_tokens=tokens, eos_ids=loaded.eos_ids, chunk_tokens=CHUNK_TOKENS
    )
    return str(loaded.tokenizer.decode(written))


class Watched:
    """A model that keeps the logits of each forward's last token."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.logits: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, tokens: Any, cache: Any) -> Any:
        """Forward, and keep what the last token's logits are."""
        logits = self._model(tokens, cache=cache)
        self.logits.append(logits[0, -1])
        return logits


def same_logits(loaded: Any, ids: tuple[int, ...], steps: int) -> bool:
    """Whether ``steps`` greedy steps, end tokens or not, have mlx-lm's logits, to the bit."""
    import mlx.core as mx

    from engine.engine import Engine
    from engine.models.reference import reference_logits
    from engine.params import SequenceParams
    from engine.prefill import plan_prefill

    watched = Watched(loaded.model)
    engine = Engine(replace(loaded, model=watched, eos_ids=frozenset()))
    seq = engine.open(SequenceParams(ids, max_tokens=steps))
    for chunk in plan_prefill(prompt_tokens=len(ids), chunk_tokens=CHUNK_TOKENS):
        engine.prefill(seq, chunk)
    while engine.wants_step(seq):
        engine.step([seq])
    tokens, judged = reference_logits(loaded.model, ids, steps, chunk_tokens=CHUNK_TOKENS)
    if list(engine.ids(seq)[len(ids) :]) != tokens:
        return False
    pairs = zip(watched.logits[-steps:], judged, strict=True)
    return all(bool(mx.array_equal(ours, theirs).item()) for ours, theirs in pairs)


if __name__ == "__main__":
    sys.exit(main())
