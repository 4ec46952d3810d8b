"""Turns options and settings into what a backend takes: which model to load, how to answer."""

from engine.errors import InvalidParams
from engine.params import SamplingParams, SequenceParams
from mlxcel_cli.answers import AnswerRequest, ModelRequest
from mlxcel_cli.config import Settings
from mlxcel_cli.lookup_options import LookupOptions, speculation_params
from mlxcel_cli.options import LengthOptions, ModelOptions
from mlxcel_cli.prompt_input import PromptInput
from mlxcel_cli.sampling_options import SamplingOptions, parse_biases, sampling_params

NO_BOUND = -1
"""As a number of tokens: until the model ends or the context is full."""


def model_request(
    given: ModelOptions, settings: Settings, *, word: str | None = None
) -> ModelRequest:
    """Which model to load, and how.

    Args:
        given: the command line's options.
        settings: fill what they leave open.
        word: the model where a command takes it as an argument.

    Raises:
        InvalidParams: the command line names two models.
    """
    if word is not None and given.model is not None:
        raise InvalidParams("--model", f"the model is named twice: {word!r} and {given.model!r}")
    options = settings.fill(given)
    return ModelRequest(
        name=options.model if word is None else word,
        settings=settings,
        dtype=options.dtype,
        quantized=options.quantized,
        context_tokens=options.ctx_size,
        offline=settings.hub_offline if options.offline is None else options.offline,
        force=bool(options.force),
    )


def answer_request(
    sampling: SamplingOptions,
    length: LengthOptions,
    lookup: LookupOptions,
    *,
    defaults: SamplingParams,
    context_tokens: int | None,
) -> AnswerRequest:
    """How to answer, all but the prompt.

    The options are filled from the settings; ``defaults`` sample where they are still open.

    Raises:
        InvalidParams: a value is out of its range; names the option.
    """
    max_tokens = token_bound(length.max_tokens)
    # The engine's own checks, on a stand-in for the prompt.
    SequenceParams(prompt_ids=(0,), max_tokens=max_tokens, context_tokens=context_tokens)
    return AnswerRequest(
        prompt=PromptInput(),
        sampling=sampling_params(sampling, defaults),
        biases=parse_biases(sampling.logit_bias),
        stops=tuple(length.stop or ()),
        max_tokens=max_tokens,
        context_tokens=context_tokens,
        ignore_eos=bool(length.ignore_eos),
        speculation=speculation_params(lookup),
    )


def token_bound(max_tokens: int | None) -> int | None:
    """The bound that ``max_tokens`` asks for; None: until the model ends or the context is full.

    Raises:
        InvalidParams: it is below -1.
    """
    if max_tokens is not None and max_tokens < NO_BOUND:
        raise InvalidParams("max_tokens", f"must be -1 (no bound), 0 or more, got {max_tokens}")
    return None if max_tokens == NO_BOUND else max_tokens
