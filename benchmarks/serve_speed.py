"""Tokens a second: many clients against mlx_lm.server, one client against our own engine."""

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from statistics import median

from benchmarks import server_process
from benchmarks.load import Client, closed_loop, ours, stream_blocking, theirs
from benchmarks.tables import head, note, row, spread
from benchmarks.texts import Texts

WIDTHS = (1, 4, 8, 16)


@dataclass(frozen=True, slots=True)
class Plan:
    """What every part is given."""

    model: Path
    """Dense float32 weights."""
    rounds: int
    new_tokens: int
    concurrency: Sequence[int] | None
    """Widths, if not the part's own."""
    peer_flags: Sequence[str]
    """More flags for mlx_lm.server."""
    lookup_flags: Sequence[str]
    """More flags for the server that drafts."""
    prompt_tokens: int | None
    """Of the long prompts, if not the part's own."""
    prompt_style: str
    prompt_cache_bytes: int | None
    """Of the part with many conversations, if not its own."""


async def throughput(plan: Plan) -> None:
    """Aggregate tokens/s, slots equal to the concurrency on both sides."""
    head(
        f"Aggregate tokens/s, prompts of 32 to 256 tokens, {plan.new_tokens} new, two requests "
        "for each client and round",
        "concurrency", "mlxcel", "mlx_lm.server", "ratio",
    )  # fmt: skip
    for width in plan.concurrency or WIDTHS:
        peer = peer_flags(plan, width)
        with (
            server_process.mlxcel(plan.model, "--parallel", str(width)) as mine,
            server_process.mlx_lm(plan.model, *peer) as other,
        ):
            async with ours(mine) as client, theirs(other) as peer_client:
                rates = await _rates(plan, width, [client, peer_client])
        ratios = [a / b for a, b in zip(*rates, strict=True)]
        row(str(width), median(rates[0]), median(rates[1]), spread(ratios))


def peer_flags(plan: Plan, width: int) -> list[str]:
    """Its own width, and prompts of as many rows at once as it decodes."""
    width_text = str(width)
    flags = ["--decode-concurrency", width_text, "--prompt-concurrency", width_text]
    return [*flags, *plan.peer_flags]


async def _rates(plan: Plan, width: int, clients: Sequence[Client]) -> list[list[float]]:
    """Of each client, one figure a round; all get the same prompts, who is first alternates."""
    texts = Texts(plan.model, seed=width)
    rates: list[list[float]] = [[] for _ in clients]
    for client in clients:  # uncounted
        await closed_loop(client, [(texts.of(32), 8) for _ in range(width)], width)
    for turn in range(plan.rounds):
        asks = [(texts.between(32, 256), plan.new_tokens) for _ in range(2 * width)]
        order = list(enumerate(clients))
        for place, client in order if turn % 2 == 0 else reversed(order):
            seconds, replies = await closed_loop(client, asks, width)
            tokens = sum(reply.tokens for reply in replies)
            assert tokens == len(asks) * plan.new_tokens, "answers of unequal length"
            rates[place].append(tokens / seconds)
    return rates


async def single(plan: Plan) -> None:
    """One served stream against the engine in a process of its own, and that one twice.

    Every order of the three comes equally often in six rounds: who follows whom matters here. A
    machine that is shared adds more to single answers than serving does; the median of all times
    between two tokens shows what is left.
    """
    new = 2 * plan.new_tokens
    names = ("served", "engine, null run", "engine")
    orders = list(permutations(names))
    figures: dict[str, list[float]] = {name: [] for name in names}
    gaps: dict[str, list[float]] = {name: [] for name in names}
    texts = Texts(plan.model)
    with server_process.mlxcel(plan.model) as mine, _engine(plan.model) as engine:
        for turn in range(plan.rounds + 1):
            prompt = texts.of(64)
            for name in orders[turn % len(orders)]:
                if name == "served":
                    reply = stream_blocking(mine, prompt, new)
                    rate, between = reply.per_second, reply.gaps_s
                else:
                    rate, between = _ask_engine(engine, texts.ids(prompt), new)
                if turn:  # the first round is uncounted
                    figures[name].append(rate)
                    gaps[name] += between
    head(
        f"One stream, 64-token prompts, {new} new",
        "variant", "tokens/s", "over the engine", "ms between tokens, p50", "the engine's over it",
    )  # fmt: skip
    middle = {name: median(found) * 1e3 for name, found in gaps.items()}
    for name in names:
        pairs = zip(figures[name], figures["engine"], strict=True)
        ratio = f"{middle['engine'] / middle[name]:.3f}"
        over = spread(a / b for a, b in pairs)
        row(name, median(figures[name]), over, middle[name], ratio)
    cost = [1e3 / a - 1e3 / b for a, b in zip(figures["served"], figures["engine"], strict=True)]
    note(f"Serving costs {median(cost):.3f} ms a token ({min(cost):.3f} to {max(cost):.3f}).")


@contextmanager
def _engine(model: Path) -> Iterator["subprocess.Popen[bytes]"]:
    process = server_process.leashed(
        ["benchmarks.peer_engine", str(model)], subprocess.PIPE, with_input=True
    )
    try:
        yield process
    finally:
        server_process.end(process)


def _ask_engine(
    engine: "subprocess.Popen[bytes]", prompt: list[int], new: int
) -> tuple[float, list[float]]:
    """Tokens a second, and the seconds between two texts."""
    assert engine.stdin is not None
    assert engine.stdout is not None
    engine.stdin.write(json.dumps({"prompt": prompt, "max_tokens": new}).encode() + b"\n")
    engine.stdin.flush()
    line = engine.stdout.readline()
    if not line:
        raise RuntimeError("the engine's process ended")
    figures = json.loads(line)
    return float(figures["per_second"]), [float(gap) for gap in figures["gaps_s"]]
