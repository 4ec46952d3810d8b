"""The soak's prompts, their answers when nothing else runs, and the comparison with later ones."""

from dataclasses import dataclass

import aiohttp

from benchmarks.server_process import completion_text
from mlxcel_cli.bench.tasks import TASKS

NEAR_TIE = 1e-3
"""Log-probability by which float32 kernels of different widths may differ, as in `parity`."""
SEED = 11
MAX_TOKENS = (8, 24, 48, 64)

_SUBJECTS = (
    "the sea", "a lighthouse", "bread", "the moon", "an old bridge", "rain in the city",
    "a violin", "the first train", "a garden in spring", "glass", "a map", "winter",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a comparison found."""

    is_wrong: bool = False
    text: str = ""
    """Where they part, if they do."""


@dataclass(frozen=True, slots=True)
class Known:
    """A prompt with the answers it had alone."""

    prompt: str
    max_tokens: int
    tokens: tuple[str, ...]
    """The greedy answer's, as text."""
    gaps: tuple[float, ...]
    """By how much each was likelier than the next best."""
    seeded: str

    @property
    def greedy(self) -> str:
        """The whole greedy answer."""
        return "".join(self.tokens)

    def greedy_body(self, length: int, *, stream: bool) -> dict[str, object]:
        """A request whose answer begins the greedy one."""
        return {"prompt": self.prompt, "max_tokens": length, "temperature": 0, "stream": stream}

    def seeded_body(self, *, stream: bool) -> dict[str, object]:
        """A request whose answer is the seeded one."""
        return _seeded_body(self.prompt, self.max_tokens, stream=stream)

    def compare(self, text: str, length: int) -> Verdict:
        """Compare the answer of at most ``length`` tokens with the one alone."""
        expected = "".join(self.tokens[:length])
        if text == expected:
            return Verdict()
        place = self._first_difference(text, length)
        gap = self.gaps[place] if place < len(self.gaps) else float("inf")
        where = f"{self.prompt[-40:]!r}, token {place} of {length}, gap {gap:.2g}"
        return Verdict(gap > NEAR_TIE, where if gap <= NEAR_TIE else f"{where}: {text!r}")

    def _first_difference(self, text: str, length: int) -> int:
        so_far = ""
        for place, token in enumerate(self.tokens[:length]):
            so_far += token
            if not text.startswith(so_far):
                return place
        return min(length, len(self.tokens))


async def known_answers(session: aiohttp.ClientSession, count: int) -> list[Known]:
    """Ask each prompt alone, past the prompt cache."""
    return [
        await _known(session, prompt, MAX_TOKENS[i % len(MAX_TOKENS)])
        for i, prompt in enumerate(_prompts(count))
    ]


def _prompts(count: int) -> list[str]:
    """Short ones, long ones, and families that share their beginning."""
    shared = f"{TASKS[0].prompt}\n```\n\nA note on "
    made = [
        (
            f"Here is a short text about {subject}.\n\n",
            f"{shared}{subject}:",
            f"{TASKS[i % len(TASKS)].prompt}",
            f"Once upon a time there was {subject}, and",
        )[i % 4]
        for i, subject in enumerate(_SUBJECTS * (count // len(_SUBJECTS) + 1))
    ]
    return made[:count]


async def _known(session: aiohttp.ClientSession, prompt: str, max_tokens: int) -> Known:
    body = {"prompt": prompt, "max_tokens": max_tokens, "cache_prompt": False}
    greedy = {**body, "temperature": 0, "logprobs": 2}
    async with session.post("/v1/completions", json=greedy, raise_for_status=True) as response:
        choice = (await response.json())["choices"][0]
    places = choice["logprobs"]
    likeliest = [sorted(best.values(), reverse=True) for best in places["top_logprobs"]]
    alone = {**_seeded_body(prompt, max_tokens, stream=False), "cache_prompt": False}
    async with session.post("/v1/completions", json=alone, raise_for_status=True) as response:
        seeded = completion_text(await response.text())
    tokens = tuple(places["tokens"])
    if "".join(tokens) != choice["text"]:  # the end token has a place, but no text
        tokens = tokens[:-1]
    assert "".join(tokens) == choice["text"], "the tokens must make the text"
    assert seeded is not None
    gaps = tuple(best[0] - best[1] if len(best) > 1 else 0.0 for best in likeliest)
    return Known(prompt, max_tokens, tokens, gaps, seeded)


def _seeded_body(prompt: str, max_tokens: int, *, stream: bool) -> dict[str, object]:
    return {
        "prompt": prompt,
        "max_tokens": max_tokens,
        "stream": stream,
        "seed": SEED,
        "temperature": 0.8,
        "top_k": 40,
    }
