"""Answers with a model that is loaded here: its prompt, its parameters, its text.

Imports MLX; only the engine thread imports this.
"""

from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace

from engine.events import Delta, Done, PrefillProgress, Started
from engine.loading import OpenedModel
from engine.lookup.reference import ReferenceText
from engine.params import SequenceParams
from engine.prompt_cache.cache import PromptCache
from engine.prompt_cache.key import CacheUse
from engine.prompt_cache.limits import CONVERSATION
from engine.session import SessionEvent
from engine.text.answer_text import AnswerText, TextDelta
from engine.text.rendered import RenderedPrompt
from engine.text.template import ChatTemplate, render_messages
from mlxcel_cli.answers import AnswerDone, AnswerEvent, AnswerRequest, LookupRefused
from mlxcel_cli.prompt_input import PromptInput
from mlxcel_cli.sampling_options import token_biases


class AnswerGenerator:
    """One model, and the KV of the conversation with it."""

    def __init__(self, ready: OpenedModel) -> None:
        self.ready = ready
        self._cache: PromptCache | None = None

    def answer(self, request: AnswerRequest) -> Iterator[AnswerEvent]:
        """Answer one prompt; closing the iterator cancels. The last event is AnswerDone.

        Raises:
            EngineError: the prompt does not fit, the template refuses it, the backend fails.
        """
        prompt = render_prompt(self.ready.loaded.template, request.prompt)
        params = self._params(prompt, request)
        text = AnswerText(
            prompt.thinking_marks, inside=prompt.opens_thinking, begun=prompt.continues_thinking
        )
        cache = self._conversation if request.reuses_kv else None
        if cache is not None:
            known = cache.covered(params, CacheUse())
            yield PrefillProgress("", known, len(params.prompt_ids))
        if request.prompt.prefill:
            yield text.add(TextDelta(request.prompt.prefill))
        with closing(self._events(params, request, cache, prompt)) as events:
            for event in events:
                match event:
                    case Started(lookup_refused=reason) if reason is not None:
                        yield LookupRefused(reason.problem)
                    case PrefillProgress():
                        yield event
                    case Delta():
                        yield from text.push(event.text, event.completion_tokens)
                    case Done():
                        yield from text.flush(event.usage.completion_tokens)
                        yield _done(event, text)
                    case Started():
                        pass

    def _events(
        self,
        params: SequenceParams,
        request: AnswerRequest,
        cache: PromptCache | None,
        prompt: RenderedPrompt,
    ) -> Generator[SessionEvent, None, None]:
        """The session's events; closing them frees the row on this thread, now."""
        ready, session = self.ready, self.ready.session
        references = self._references(params, request)
        widths = ready.use_kept_widths(params.speculation)
        session.width_costs = ready.width_costs
        try:
            yield from session.generate(
                params,
                stops=request.stops,
                continues_text=prompt.continues_text,
                references=references,
                cache=cache,
            )
        finally:
            # Measured before the first token: a cancelled answer has measured too.
            ready.width_costs = session.width_costs
        if widths is not None and ready.width_costs is not None:
            widths.save(ready.width_costs)

    def _params(self, prompt: RenderedPrompt, request: AnswerRequest) -> SequenceParams:
        tokenizer = self.ready.loaded.tokenizer
        biases = token_biases(request.biases, tokenizer.encode)
        return SequenceParams(
            prompt_ids=tokenizer.encode_rendered(prompt),
            sampling=replace(request.sampling, logit_bias=biases),
            max_tokens=request.max_tokens,
            context_tokens=request.context_tokens,
            ignore_eos=request.ignore_eos,
            speculation=request.speculation,
        )

    def _references(self, params: SequenceParams, request: AnswerRequest) -> list[ReferenceText]:
        if params.speculation is None:
            return []
        encode = self.ready.loaded.tokenizer.encode
        return [
            ReferenceText.from_tokens(name, encode(text), params.speculation)
            for name, text in request.lookup_texts
        ]

    @property
    def _conversation(self) -> PromptCache:
        if self._cache is None:
            self._cache = PromptCache(self.ready.engine, CONVERSATION)
        return self._cache


def render_prompt(template: ChatTemplate | None, prompt: PromptInput) -> RenderedPrompt:
    """The prompt as the model reads it.

    Raises:
        TemplateError: the chat template refuses the messages.
    """
    if prompt.raw is not None:
        return RenderedPrompt(prompt.raw, is_raw=True)
    messages = list(prompt.messages or ())
    if prompt.prefill:
        messages.append({"role": "assistant", "content": prompt.prefill})
    return render_messages(
        template, messages, continue_final=bool(prompt.prefill), extra=prompt.template_values
    )


def _done(answer: Done, text: AnswerText) -> AnswerDone:
    return AnswerDone(
        text=text.text,
        finish=answer.finish.value,
        seed=answer.seed,
        usage=answer.usage,
        timings=answer.timings,
        reasoned=text.reasoned,
        lookup=answer.lookup,
        lookup_dropped=answer.lookup_dropped,
    )
