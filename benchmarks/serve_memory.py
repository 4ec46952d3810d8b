"""What the server caches and drafts: second turns, and prompt lookup off and on."""

from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median

from benchmarks import server_process
from benchmarks.load import Client, closed_loop, ours, theirs
from benchmarks.serve_speed import Plan
from benchmarks.tables import head, note, row, spread
from benchmarks.texts import Texts, style_prompts

CONVERSATION_TOKENS = 2000
FIRST_ANSWER_TOKENS = 32
WARM_ASKS = 4
"""Second turns of one conversation; their median counts."""
LOOKUP = ("--draft-kind", "prompt-lookup")
LOOKUP_WIDTHS = (1, 2, 4, 8)


async def second_turn(plan: Plan) -> None:
    """TTFT of a second turn, its first cached or never seen, and decoding after both."""
    new = 2 * plan.new_tokens
    tokens = plan.prompt_tokens or CONVERSATION_TOKENS
    turns: dict[str, list[_Turn]] = {"mlxcel": [], "mlx-lm": []}
    with (
        server_process.mlxcel(plan.model) as mine,
        server_process.mlx_lm(plan.model, *plan.peer_flags) as other,
    ):
        async with ours(mine) as client, theirs(other) as peer:
            texts = Texts(plan.model)
            head(
                f"Second turn of a conversation of {tokens} tokens",
                "server, round", "TTFT cold (ms)", "TTFT warm (ms)", "warm over cold",
                "cached tokens", "decode cold (tok/s)", "decode warm (tok/s)", "warm over cold",
            )  # fmt: skip
            for turn in range(plan.rounds):
                for one in (client, peer):
                    found = await _turn(one, texts, tokens, new)
                    turns[one.server.name].append(found)
                    found.show(f"{one.server.name}, {turn + 1}")
    for name, all_turns in turns.items():
        first = spread(turn.warm_s / turn.cold_s for turn in all_turns)
        rate = spread(turn.warm_rate / turn.cold_rate for turn in all_turns)
        note(f"{name}: warm over cold TTFT {first}, decode {rate}.")
    pairs = zip(turns["mlxcel"], turns["mlx-lm"], strict=True)
    note(f"Warm TTFT, mlxcel over mlx-lm: {spread(a.warm_s / b.warm_s for a, b in pairs)}.")


class _Turn:
    """One round's figures."""

    __slots__ = ("cached_tokens", "cold_rate", "cold_s", "warm_rate", "warm_s")

    def __init__(self) -> None:
        self.cold_s = self.warm_s = self.cold_rate = self.warm_rate = 0.0
        self.cached_tokens = 0

    def show(self, name: str) -> None:
        row(
            name, self.cold_s * 1e3, self.warm_s * 1e3, self.warm_s / self.cold_s,
            str(self.cached_tokens), self.cold_rate, self.warm_rate,
            self.warm_rate / self.cold_rate,
        )  # fmt: skip


async def _turn(client: Client, texts: Texts, tokens: int, new: int) -> _Turn:
    turn = _Turn()
    # Cold: a whole conversation that nobody heard of, of the same length.
    first = texts.conversation(tokens)
    reply = await client.chat(_asked_on(first, texts.of(FIRST_ANSWER_TOKENS), texts), new)
    turn.cold_s, turn.cold_rate = reply.ttft_s, reply.per_second
    first = texts.conversation(tokens)
    answer = (await client.chat(first, FIRST_ANSWER_TOKENS)).text
    asked = [await client.chat(_asked_on(first, answer, texts), 1) for _ in range(WARM_ASKS)]
    turn.warm_s = median(one.ttft_s for one in asked)
    turn.cached_tokens = min(one.cached_tokens for one in asked)
    turn.warm_rate = (await client.chat(_asked_on(first, answer, texts), new)).per_second
    return turn


def _asked_on(first: list[dict[str, str]], answer: str, texts: Texts) -> list[dict[str, str]]:
    """A conversation's first turn and a new question."""
    question = {"role": "user", "content": f"And{texts.of(16)}?"}
    return [*first, {"role": "assistant", "content": answer}, question]


async def lookup(plan: Plan) -> None:
    """Prompt lookup off and on at several widths, and off twice as the noise floor."""
    style = plan.prompt_style
    head(
        f"Prompt lookup in the server, {style} prompts, {2 * plan.new_tokens} new tokens, greedy",
        "concurrency", "off (tok/s)", "off, null run", "on", "null over off", "on over off",
        "drafted", "accepted", "equal replies",
    )  # fmt: skip
    if plan.prompt_tokens:
        note(
            f"Prompts are behind {plan.prompt_tokens} tokens of other text, which the prompt cache "
            "holds; rates are those of decoding alone."
        )
    for width in plan.concurrency or LOOKUP_WIDTHS:
        with ExitStack() as stack:
            cache = () if plan.prompt_tokens else ("--no-prompt-cache",)
            flags = ("--parallel", str(width), *cache)
            off = stack.enter_context(server_process.mlxcel(plan.model, *flags, name="off"))
            drafting = (*flags, *LOOKUP, *plan.lookup_flags)
            on = stack.enter_context(server_process.mlxcel(plan.model, *drafting, name="on"))
            async with ours(off) as off_client, ours(on) as on_client:
                await _lookup_row(plan, width, off_client, on_client)


async def _lookup_row(plan: Plan, width: int, off: Client, on: Client) -> None:
    variants = {"off": off, "null": off, "on": on}
    before = Texts(plan.model).of(plan.prompt_tokens) if plan.prompt_tokens else ""
    prompts = style_prompts(plan.prompt_style, 2 * width)
    asks = [(before + text, 2 * plan.new_tokens) for text in prompts]
    rates: dict[str, list[float]] = {name: [] for name in variants}
    texts: dict[str, list[str]] = {}
    drafted = accepted = 0
    for client in (off, on):  # uncounted; "on" measures its widths
        await closed_loop(client, asks[:width], width)
    for turn in range(plan.rounds):
        names = list(variants)
        for name in names[turn % 3 :] + names[: turn % 3]:
            seconds, replies = await closed_loop(variants[name], asks, width)
            decoded = sum(reply.per_second for reply in replies) * width / len(replies)
            whole = sum(reply.tokens for reply in replies) / seconds
            rates[name].append(decoded if before else whole)
            texts[name] = sorted(reply.text for reply in replies)
            if name == "on":
                drafted += sum(int(reply.timings.get("draft_n", 0)) for reply in replies)
                accepted += sum(int(reply.timings.get("draft_n_accepted", 0)) for reply in replies)
    equal = sum(a == b for a, b in zip(texts["off"], texts["on"], strict=True))
    row(
        str(width), *(median(rates[name]) for name in variants), _over(rates["null"], rates["off"]),
        _over(rates["on"], rates["off"]), str(drafted), str(accepted), f"{equal} of {len(asks)}",
    )  # fmt: skip


def _over(some: Sequence[float], base: Sequence[float]) -> str:
    return spread(a / b for a, b in zip(some, base, strict=True))
