"""Settings of a chat: whose word counts, and what is refused."""

from pathlib import Path

import pytest

from engine.errors import InvalidParams
from engine.params import SpeculationParams
from mlxcel_cli.answers import ModelReport
from mlxcel_cli.chat.settings import ChatSettings
from mlxcel_cli.lookup_options import LookupOptions
from mlxcel_cli.options import LengthOptions
from mlxcel_cli.sampling_options import SamplingOptions


def model(**sampling) -> ModelReport:
    return ModelReport("m", Path("m"), 0.1, has_template=True, sampling=sampling)


def chosen(settings: ChatSettings, report: ModelReport | None) -> tuple[float, float, int]:
    sampling = settings.request(report).sampling
    return sampling.temperature, sampling.top_p, sampling.top_k


def test_the_user_s_word_counts_before_the_model_s_and_that_before_the_default():
    assert chosen(ChatSettings(), None) == (0.7, 0.95, 0)
    assert chosen(ChatSettings(), model(temperature=0.6, top_k=20)) == (0.6, 0.95, 20)
    mine = ChatSettings(sampling=SamplingOptions(temperature=0.0, top_k=0))
    assert chosen(mine, model(temperature=0.6, top_p=0.8, top_k=20)) == (0.0, 0.8, 0)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("temperature", "0.2", "temperature = 0.2"),
        ("--top-k", "5", "top-k = 5"),
        ("max-tokens", "7", "max-tokens = 7"),
        ("stop", "END", "stop = ['END']"),
    ],
)
def test_a_setting_is_named_as_on_the_command_line(name, text, said):
    assert ChatSettings().set(name, text) == said


@pytest.mark.parametrize(
    ("name", "text"),
    [("temperature", "-1"), ("temperature", "warm"), ("max-tokens", "-2"), ("model", "x")],
)
def test_a_wrong_value_is_refused_and_changes_nothing(name, text):
    settings = ChatSettings(length=LengthOptions(max_tokens=5))
    with pytest.raises(InvalidParams):
        settings.set(name, text)
    assert settings == ChatSettings(length=LengthOptions(max_tokens=5))


def test_what_is_in_force_is_listed_by_its_name():
    settings = ChatSettings(sampling=SamplingOptions(min_p=0.1), length=LengthOptions(stop=["a"]))
    assert dict(settings.in_force(model(temperature=0.6))) == {
        "temperature": 0.6, "top-p": 0.95, "top-k": 0, "min-p": 0.1,
        "max-tokens": "no bound", "stop": "'a'",
    }  # fmt: skip


def test_prompt_lookup_is_asked_for_when_it_is_on():
    assert ChatSettings().request(None).speculation is None
    settings = ChatSettings(lookup=LookupOptions(prompt_lookup_max_draft=5))
    settings.switch_lookup(on=True)
    assert settings.request(None).speculation == SpeculationParams(max_draft=5)
