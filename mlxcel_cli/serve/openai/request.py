"""Turns bodies of OpenAI's API into prompts and generation specs."""

from engine.errors import InvalidParams
from engine.scheduler.queue import Priority
from mlxcel_cli.serve.generation import GenerationSpec
from mlxcel_cli.serve.openai.schema import ChatRequest, CompletionRequest
from mlxcel_cli.serve.prompts import MAX_PROMPTS, ChatPrompt, EncodedPrompt, encode_text
from mlxcel_cli.serve.served_model import ServedModel

MAX_CHAT_LOGPROBS = 20
MAX_LEGACY_LOGPROBS = 5


def chat_of(body: ChatRequest) -> ChatPrompt:
    """The conversation of a request."""
    variables = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    return ChatPrompt(
        messages=body.messages,
        add_generation_prompt=body.add_generation_prompt,
        continue_final=body.continue_final_message,
        variables=variables,
    )


def chat_spec(body: ChatRequest, priority: Priority) -> GenerationSpec:
    """What a chat request asks for.

    Raises:
        InvalidParams: ``top_logprobs`` is out of its range, or ``logprobs`` is not set.
    """
    top = body.top_logprobs
    if top is not None and not 0 <= top <= MAX_CHAT_LOGPROBS:
        raise InvalidParams("top_logprobs", f"must be from 0 to {MAX_CHAT_LOGPROBS}, got {top}")
    if top is not None and not body.logprobs:
        raise InvalidParams("top_logprobs", "needs logprobs: true")
    return body.spec(
        priority,
        logprobs=top or 0 if body.logprobs else None,
        has_reasoning=True,
        thinking_budget=body.thinking_budget,
    )


def completion_spec(body: CompletionRequest, priority: Priority) -> GenerationSpec:
    """What a legacy completion request asks for.

    Raises:
        InvalidParams: ``logprobs`` is out of its range, or the prompt's are asked for.
    """
    top = body.logprobs
    if top is not None and not 0 <= top <= MAX_LEGACY_LOGPROBS:
        raise InvalidParams("logprobs", f"must be from 0 to {MAX_LEGACY_LOGPROBS}, got {top}")
    if top is not None and body.echo:
        raise InvalidParams("logprobs", "of the prompt (with echo) is not supported yet")
    return body.spec(priority, logprobs=top)


def completion_prompts(body: CompletionRequest, model: ServedModel) -> tuple[EncodedPrompt, ...]:
    """The texts or token ids to continue.

    Raises:
        InvalidParams: there are none, too many, or a mixture.
        ContextOverflow: one is far too long.
    """
    prompt = body.prompt
    if isinstance(prompt, str):
        return (encode_text([prompt], model),)
    if not prompt:
        raise InvalidParams("prompt", "is empty: there is nothing to continue")
    ids = [one for one in prompt if isinstance(one, int)]
    if len(ids) == len(prompt):
        return (encode_text(ids, model),)
    if len(prompt) > MAX_PROMPTS:
        raise InvalidParams("prompt", f"holds {len(prompt)} prompts; at most {MAX_PROMPTS} may")
    if ids:
        raise InvalidParams("prompt", "mixes token ids with texts")
    texts = [one for one in prompt if not isinstance(one, int)]
    return tuple(encode_text([one] if isinstance(one, str) else one, model) for one in texts)
