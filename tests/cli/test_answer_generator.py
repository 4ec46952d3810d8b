"""Answers of a loaded model."""

from types import SimpleNamespace

from engine.events import Delta
from engine.lookup.widths import WidthCosts
from engine.params import SamplingParams
from engine.text.answer_text import TextDelta
from mlxcel_cli.answer_generator import AnswerGenerator
from mlxcel_cli.answers import AnswerRequest
from mlxcel_cli.prompt_input import PromptInput

COSTS = WidthCosts((1.0, 1.2))


class MeasuringSession:
    """A session whose answers never end by themselves."""

    width_costs: WidthCosts | None = None

    def generate(self, params, **_):
        try:
            yield Delta("session", "a", (5,), (), 1)
        finally:
            self.width_costs = COSTS


def test_what_a_cancelled_answer_has_measured_is_kept():
    tokenizer = SimpleNamespace(encode_rendered=lambda prompt: (1, 2), encode=None)
    ready = SimpleNamespace(
        loaded=SimpleNamespace(template=None, tokenizer=tokenizer),
        session=MeasuringSession(),
        width_costs=None,
        use_kept_widths=lambda speculation: None,
    )
    request = AnswerRequest(prompt=PromptInput(raw="hi"), sampling=SamplingParams())
    answer = AnswerGenerator(ready).answer(request)
    assert next(answer) == TextDelta("a", tokens=1)
    answer.close()
    assert ready.width_costs == COSTS
