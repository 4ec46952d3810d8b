import pytest

from engine.errors import EvalFailed
from engine.finish import FinishCause
from engine.outcome import SeqId, StepOutcome, Timings


def timings(**values: float) -> Timings:
    return Timings(
        **{"prompt_n": 0, "prompt_s": 0, "predicted_n": 0, "predicted_s": 0, "ttft_s": 0, **values}
    )


@pytest.mark.parametrize(
    ("tokens", "seconds", "rate"),
    [
        pytest.param(11, 2.0, 5.0, id="the first token is when the clock starts"),
        pytest.param(1, 2.0, 0.0, id="one token has no rate"),
        pytest.param(0, 0.0, 0.0, id="none"),
        pytest.param(5, 0.0, 0.0, id="a stopped clock"),
    ],
)
def test_tokens_a_second(tokens: int, seconds: float, rate: float):
    assert timings(predicted_n=tokens, predicted_s=seconds).predicted_per_second == rate


def test_prompt_tokens_a_second():
    assert timings(prompt_n=10, prompt_s=4.0).prompt_per_second == 2.5
    assert timings(prompt_n=10).prompt_per_second == 0.0


def test_a_row_is_over_after_a_finish_or_an_error():
    seq = SeqId(1)
    assert not StepOutcome(seq, 5).is_final
    assert StepOutcome(seq, 5, finish=FinishCause.LENGTH).is_final
    assert StepOutcome(seq, None, error=EvalFailed("x")).is_final
