"""Compares prompt-lookup policies on known texts, without a model: tokens per unit of cost.

The text an imagined model writes is known beforehand; a drafted token is right when it is the
text's next one. Costs come from measured width tables. The unit is one pipelined plain step, so
that plain decoding scores 1.

    python benchmarks/lookup_simulation.py
    python benchmarks/lookup_simulation.py --prompt p.txt --answer a.txt --tokenizer tokenizer.json
"""

import argparse
import inspect
import json
import random
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.lookup.auto_governor import governor_for
from engine.lookup.drafter import PromptLookup
from engine.lookup.widths import WidthCosts
from engine.params import LookupPolicy, SpeculationParams

COSTS = {
    # Verify cost of widths 1 to 8, SmolLM2-135M on two CPU cores.
    "dense": (1.0, 1.40, 1.46, 1.53, 1.61, 1.69, 1.77, 1.84),
    "quantized": (1.0, 1.95, 2.90, 3.85, 4.80, 5.70, 6.65, 7.6),
    # Shapes of other backends: wide forwards nearly free, but a host read between steps is felt.
    "gpu": (1.15, 1.25, 1.27, 1.29, 1.35, 1.38, 1.42, 1.45),
    "half": (1.0, 1.5, 2.0, 2.4, 2.9, 3.4, 3.8, 4.3),
}
"""Cost tables by name; see ``WidthCosts``."""


@dataclass(frozen=True, slots=True)
class Task:
    """A prompt and the answer that will be written, as token ids."""

    name: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def decode(task: Task, drafter: PromptLookup, costs: WidthCosts) -> float:
    """Cost of writing the answer, round by round as the engine would."""
    answer = task.answer
    drafter.start(task.prompt, answer[0])
    written, spent, in_flight = 1, 0.0, False
    while written < len(answer):
        draft = drafter.ask(answer[written - 1], min(7, len(answer) - written - 1))
        if in_flight and draft:
            drafter.retract(draft)
            draft, in_flight = (), False
            spent += costs.by_width[0]
            drafter.observe(answer[written : written + 1])
            written += 1
        elif draft:
            accepted = _agreeing(draft, answer[written:])
            spent += costs.verify(len(draft))
            drafter.accept(draft, accepted, answer[written : written + accepted + 1])
            written += accepted + 1
        else:
            spent += 1.0 if in_flight else costs.by_width[0]
            drafter.observe(answer[written : written + 1])
            written += 1
            in_flight = drafter.pipelines_plain_rounds()
    return spent


def speed(task: Task, policy: LookupPolicy, costs: WidthCosts) -> tuple[float, str]:
    """Tokens per unit of cost, and the drafter's counts."""
    params = SpeculationParams(policy=policy)
    governor = governor_for(params, unmeasured=LookupPolicy.GRADED, costs=costs)
    drafter = PromptLookup(params, governor)
    spent = decode(task, drafter, costs)
    stats = drafter.stats
    counts = f"{stats.accepted}/{stats.proposed} in {stats.drafted_rounds}"
    return (len(task.answer) - 1) / spent, counts


def built_in_tasks(encode: Callable[[str], tuple[int, ...]]) -> Iterator[Task]:
    """Copies with and without edits, prose, and worst cases, from Python's own library."""
    from pydoc_data.topics import topics

    code = inspect.getsource(textwrap.TextWrapper)[:6000]
    edited = code.replace("chunks", "pieces").replace("width", "columns")
    yield Task("code copy", encode("Repeat this code:\n" + code), encode(code[:3000]))
    yield Task("code edit", encode("Rename two names in:\n" + code), encode(edited[:3000]))
    rows = [{"id": i, "name": f"item-{i * 37 % 101}", "stock": i * 7 % 13} for i in range(60)]
    changed = [row | {"stock": row["stock"] + 1} for row in rows]
    asked = encode("Add one to each stock:\n" + json.dumps(rows, indent=1))
    yield Task("json edit", asked, encode(json.dumps(changed, indent=1)[:2500]))
    prose = "\n".join(str(topics[name]) for name in ("class", "with", "naming", "import"))
    lines = [line for line in prose.split("\n") if len(line) > 40]
    quotes = "\n".join(f"- In short: {line.strip().lower()}." for line in lines[5:60:4])
    yield Task("extract", encode("List the main points:\n" + prose), encode(quotes))
    yield Task(
        "new code", encode("Write a module."), encode(inspect.getsource(argparse)[2500:8500])
    )
    yield Task(
        "prose", encode("Explain operators."), encode(str(topics["operator-summary"])[:3000])
    )
    yield Task("prose 2", encode("Explain imports."), encode(str(topics["import"])[:5000]))
    for seed, order in ((1, 1), (2, 2)):
        words = encode(prose)
        yield Task(f"markov {order}", words[:1500], _markov(words, order, 1200, seed))


def word_encoder() -> Callable[[str], tuple[int, ...]]:
    """Word pieces of at most five characters, punctuation and white space as tokens."""
    ids: dict[str, int] = defaultdict(lambda: len(ids))
    pieces = re.compile(r" ?[A-Za-z]{1,5}| ?\d{1,2}|\n *| {2,}|.")
    return lambda text: tuple(ids[piece] for piece in pieces.findall(text))


def file_encoder(path: Path) -> Callable[[str], tuple[int, ...]]:
    """The tokens of a ``tokenizer.json``."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    return lambda text: tuple(tokenizer.encode(text, add_special_tokens=False).ids)


def main() -> None:
    """Print one line per cost table and task, one column per policy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--prompt", type=Path)
    parser.add_argument("--answer", type=Path)
    args = parser.parse_args()
    encode = file_encoder(args.tokenizer) if args.tokenizer else word_encoder()
    tasks = list(built_in_tasks(encode))
    if args.prompt and args.answer:
        tasks = [Task("file", encode(args.prompt.read_text()), encode(args.answer.read_text()))]
    policies = tuple(LookupPolicy)
    print(f"{'costs':10} {'task':10} {'tokens':>6} " + " ".join(f"{p:>6}" for p in policies))
    for name, table in COSTS.items():
        costs = WidthCosts(table)
        for task in tasks:
            results = [speed(task, policy, costs) for policy in policies]
            figures = " ".join(f"{rate:6.2f}" for rate, _ in results)
            print(f"{name:10} {task.name:10} {len(task.answer):6} {figures}  {results[0][1]}")


def _agreeing(draft: Sequence[int], truth: Sequence[int]) -> int:
    """Length of the common beginning."""
    same = 0
    while same < min(len(draft), len(truth)) and draft[same] == truth[same]:
        same += 1
    return same


def _markov(words: Sequence[int], order: int, length: int, seed: int) -> tuple[int, ...]:
    """Text that repeats every short n-gram and never a long one for long."""
    followers: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for place in range(order, len(words)):
        followers[tuple(words[place - order : place])].append(words[place])
    draw = random.Random(seed)
    text = list(words[:order])
    while len(text) < length:
        known = followers.get(tuple(text[-order:])) or list(words)
        text.append(draw.choice(known))
    return tuple(text)


if __name__ == "__main__":
    main()
