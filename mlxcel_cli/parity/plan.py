"""What ``mlxcel parity`` is to compare, from its command line."""

import secrets
from dataclasses import dataclass

from engine.errors import InvalidParams
from engine.params import SEED_LIMIT
from engine.prefill import PREFILL_CHUNK_TOKENS
from mlxcel_cli.answers import ModelRequest
from mlxcel_cli.command_lines import ParityCommand
from mlxcel_cli.config import Settings
from mlxcel_cli.engine_requests import model_request

DEFAULT_SEED = 1234
DEFAULT_TOKENS = 64
DEFAULT_BATCH = 4
BATCH_LIMIT = 64

OWN_PROMPTS = (
    "Tell a short story about a lighthouse keeper who finds a message in a bottle.",
    "Repeat this list and then write it once more: apple, pear, plum, cherry, apple, pear, plum, "
    "cherry, apple, pear, plum, cherry.",
)
"""One to make up a story, and one to copy a list, in which prompt lookup finds something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityPlan:
    """What is compared, checked before a model is loaded: plain values for the engine thread."""

    model: ModelRequest
    prompts: tuple[str, ...]
    raw: bool
    max_tokens: int
    seed: int
    variants: tuple[str, ...]
    """By name; empty: all there are."""
    cases: tuple[str, ...]
    batch: int
    gap: float | None
    teacher_forced: bool
    chunk_tokens: int


def plan_parity(options: ParityCommand, settings: Settings) -> ParityPlan:
    """The command line, with its defaults, refused where it makes no sense.

    Raises:
        InvalidParams: names the option.
        OSError: the file of prompts cannot be read.
    """
    max_tokens = DEFAULT_TOKENS if options.max_tokens is None else options.max_tokens
    batch = DEFAULT_BATCH if options.rows is None else options.rows
    if max_tokens < 1:
        raise InvalidParams("--max-tokens", f"must be 1 or more here, got {max_tokens}")
    if not 1 <= batch <= BATCH_LIMIT:
        raise InvalidParams("--rows", f"must be from 1 to {BATCH_LIMIT}, got {batch}")
    if options.gap is not None and not options.gap >= 0:
        raise InvalidParams("--gap", f"must be 0 or more, got {options.gap}")
    chunk = settings.machine.prefill_chunk
    return ParityPlan(
        model=model_request(options.model, settings, word=options.model_word),
        prompts=_prompts(options),
        raw=bool(options.raw),
        max_tokens=max_tokens,
        seed=_seed(options.seed),
        variants=_names(options.variants),
        cases=_names(options.cases),
        batch=batch,
        gap=options.gap,
        teacher_forced=bool(options.teacher_forced),
        chunk_tokens=PREFILL_CHUNK_TOKENS if chunk is None else chunk,
    )


def _prompts(options: ParityCommand) -> tuple[str, ...]:
    if options.prompt is not None and options.prompts is not None:
        raise InvalidParams("--prompts", "give --prompt or --prompts, not both")
    prompts: tuple[str, ...] = OWN_PROMPTS
    if options.prompt is not None:
        prompts = (options.prompt,)
    elif options.prompts is not None:
        try:
            text = options.prompts.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise InvalidParams("--prompts", f"is not UTF-8 text: {error}") from error
        prompts = tuple(line for line in text.splitlines() if line.strip())
    if not prompts or not all(prompt.strip() for prompt in prompts):
        raise InvalidParams("prompt", "is empty: there is nothing to answer")
    return prompts


def _seed(given: int | None) -> int:
    if given == -1:
        return secrets.randbelow(SEED_LIMIT)
    seed = DEFAULT_SEED if given is None else given
    if not 0 <= seed < SEED_LIMIT:
        raise InvalidParams("--seed", f"must be -1 or from 0 to 2^53 - 1, got {seed}")
    return seed


def _names(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(filter(None, (one.strip() for one in text.split(","))))
