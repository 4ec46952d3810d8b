"""Options reach a command in groups, under every spelling."""

import inspect
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer

from engine.params import SamplingParams
from mlxcel_cli.help_text import PlainCommand
from mlxcel_cli.option_groups import takes_groups
from mlxcel_cli.options import LengthOptions
from mlxcel_cli.sampling_options import SamplingOptions


@dataclass(frozen=True, kw_only=True)
class Groups:
    length: LengthOptions
    sampling: SamplingOptions
    other: Annotated[int | None, typer.Option()] = None


@pytest.fixture
def run():
    """Runs a command that takes two groups; gives what reached it."""

    @takes_groups
    def command(groups: Groups) -> tuple:
        return groups.length, groups.sampling

    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(cls=PlainCommand)(command)
    parsed = typer.main.get_command(app)
    return lambda *arguments: parsed.main(list(arguments), standalone_mode=False)


def test_a_command_gets_its_groups_and_what_was_not_given_is_none(run):
    length, sampling = run("-n", "5", "--stop", "a", "--stop", "b", "--top-k", "3")
    assert length == LengthOptions(max_tokens=5, stop=["a", "b"])
    assert sampling == SamplingOptions(top_k=3)


@pytest.mark.parametrize("spelling", ["-t", "--temp", "--temperature"])
def test_every_spelling_of_an_option_means_the_same(run, spelling):
    assert run(spelling, "0.5")[1].temperature == 0.5


def test_a_switch_can_be_turned_off_again(run):
    assert run("--ignore-eos")[0].ignore_eos is True
    assert run("--no-ignore-eos")[0].ignore_eos is False


def test_typer_sees_one_parameter_a_field():
    @takes_groups
    def command(groups: Groups) -> None: ...

    assert set(inspect.signature(command).parameters) == {
        *LengthOptions.__dataclass_fields__,
        *SamplingOptions.__dataclass_fields__,
        "other",
    }


def test_every_sampling_parameter_is_an_option_under_its_name():
    own = {*SamplingParams.__dataclass_fields__} - {"logprobs"}
    assert own == set(SamplingOptions.__dataclass_fields__)
