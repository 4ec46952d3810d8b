"""Runs ``mlxcel parity``: the engine thread compares, this side writes what it found."""

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from engine.errors import InvalidParams
from engine.models.progress import Progress
from engine.params import SEED_LIMIT
from engine.prefill import PREFILL_CHUNK_TOKENS
from mlxcel_cli.answers import ModelRequest
from mlxcel_cli.config import Settings, load_settings
from mlxcel_cli.engine_thread import EngineThread
from mlxcel_cli.options import ModelOptions
from mlxcel_cli.output import Output, standard_output
from mlxcel_cli.parity_plan import ParityPlan
from mlxcel_cli.parity_report import ParityEvent, ParityReport
from mlxcel_cli.progress_text import progress_text

DEFAULT_SEED = 1234
DEFAULT_TOKENS = 64
DEFAULT_BATCH = 4
BATCH_LIMIT = 64

OWN_PROMPTS = (
    "Tell a short story about a lighthouse keeper who finds a message in a bottle.",
    "Repeat this list and then write it once more: apple, pear, plum, cherry, apple, pear, plum, "
    "cherry, apple, pear, plum, cherry.",
)
"""A text to make up, and one to copy, in which prompt lookup finds something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityOptions:
    """The command line of ``parity``; None is not given."""

    model_word: str | None
    model: ModelOptions
    prompt: str | None
    prompts: Path | None
    raw: bool | None
    max_tokens: int | None
    seed: int | None
    arms: str | None
    cases: str | None
    batch: int | None
    gap: float | None
    teacher_forced: bool
    json: bool
    verbose: bool
    config: Path | None


def check_parity(options: ParityOptions) -> int:
    """Compare and tell; the exit status is 1 where arms disagree.

    Raises:
        EngineError, OSError: for the program's door to tell.
    """
    output = standard_output(os.environ)
    settings = load_settings(os.environ, command="parity", config=options.config)
    for warning in settings.warnings:
        output.note(f"mlxcel: {warning}")
    plan = plan_parity(options, settings)
    report = ParityReport(output, as_json=options.json, verbose=options.verbose)
    from mlxcel_cli.parity_backend import compared

    with EngineThread() as thread, thread.stream(lambda emit: compared(plan, emit)) as events:
        for event in events:
            _tell(event, output, report)
    return report.close()


def plan_parity(options: ParityOptions, settings: Settings) -> ParityPlan:
    """The command line, with its defaults, refused where it makes no sense.

    Raises:
        InvalidParams: names the option.
        OSError: the file of prompts cannot be read.
    """
    model = settings.fill(options.model)
    if options.model_word is not None and options.model.model is not None:
        raise InvalidParams("--model", "the model is named twice")
    max_tokens = DEFAULT_TOKENS if options.max_tokens is None else options.max_tokens
    batch = DEFAULT_BATCH if options.batch is None else options.batch
    if max_tokens < 1:
        raise InvalidParams("--max-tokens", f"must be 1 or more here, got {max_tokens}")
    if not 1 <= batch <= BATCH_LIMIT:
        raise InvalidParams("--rows", f"must be from 1 to {BATCH_LIMIT}, got {batch}")
    if options.gap is not None and not options.gap >= 0:
        raise InvalidParams("--gap", f"must be 0 or more, got {options.gap}")
    chunk = settings.machine.prefill_chunk
    return ParityPlan(
        model=ModelRequest(
            name=options.model_word or model.model,
            settings=settings,
            dtype=model.dtype,
            quantized=model.quantized,
            context_tokens=model.ctx_size,
            offline=settings.hub_offline if model.offline is None else model.offline,
            force=bool(model.force),
        ),
        prompts=_prompts(options),
        raw=bool(options.raw),
        max_tokens=max_tokens,
        seed=_seed(options.seed),
        arms=_names(options.arms),
        cases=_names(options.cases),
        batch=batch,
        gap=options.gap,
        teacher_forced=options.teacher_forced,
        chunk_tokens=PREFILL_CHUNK_TOKENS if chunk is None else chunk,
    )


def _prompts(options: ParityOptions) -> tuple[str, ...]:
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


def _seed(asked: int | None) -> int:
    if asked == -1:
        return secrets.randbelow(SEED_LIMIT)
    seed = DEFAULT_SEED if asked is None else asked
    if not 0 <= seed < SEED_LIMIT:
        raise InvalidParams("--seed", f"must be -1 or from 0 to 2^53 - 1, got {seed}")
    return seed


def _names(text: str | None) -> tuple[str, ...]:
    return () if text is None else tuple(filter(None, (one.strip() for one in text.split(","))))


def _tell(event: Progress | ParityEvent, output: Output, report: ParityReport) -> None:
    if isinstance(event, Progress):
        output.progress(progress_text(event))
    else:
        output.clear_progress()
        report.take(event)
