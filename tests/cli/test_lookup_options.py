"""Prompt lookup's options: what the engine takes, and what is refused by name."""

from pathlib import Path

import pytest

from engine.errors import InvalidParams
from engine.params import LookupPolicy, SpeculationParams
from mlxcel_cli.lookup_options import (
    LookupOptions,
    check_dependent_options,
    complete_policies,
    read_lookup_files,
    speculation_params,
)


def test_it_is_off_unless_asked_for():
    assert speculation_params(LookupOptions()) is None
    assert speculation_params(LookupOptions(prompt_lookup=False)) is None


def test_the_engine_s_defaults_stand_for_what_is_not_given():
    assert speculation_params(LookupOptions(prompt_lookup=True)) == SpeculationParams()


def test_every_option_reaches_the_engine():
    options = LookupOptions(
        prompt_lookup=True,
        prompt_lookup_ngram_max=5,
        prompt_lookup_ngram_min=1,
        prompt_lookup_max_draft=12,
        prompt_lookup_policy="gated",
    )
    assert speculation_params(options) == SpeculationParams(5, 1, 12, LookupPolicy.GATED)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"prompt_lookup_ngram_max": 17}, "--prompt-lookup-ngram-max"),
        ({"prompt_lookup_ngram_min": 0}, "--prompt-lookup-ngram-min"),
        ({"prompt_lookup_ngram_min": 4}, "--prompt-lookup-ngram-max"),
        ({"prompt_lookup_max_draft": 65}, "--prompt-lookup-max-draft"),
        ({"prompt_lookup_policy": "bold"}, "--prompt-lookup-policy"),
    ],
    ids=str,
)
def test_a_value_out_of_range_is_refused_by_its_option_s_name(options, option):
    with pytest.raises(InvalidParams) as caught:
        speculation_params(LookupOptions(prompt_lookup=True, **options))
    assert caught.value.field == option


@pytest.mark.parametrize(
    "options",
    [
        {"prompt_lookup_ngram_max": 3},
        {"prompt_lookup_ngram_min": 2},
        {"prompt_lookup_max_draft": 7},
        {"prompt_lookup_policy": "auto"},
        {"lookup_file": [Path("a")]},
    ],
    ids=str,
)
@pytest.mark.parametrize("switch", [None, False])
def test_an_option_that_would_do_nothing_is_refused(options, switch):
    given = LookupOptions(prompt_lookup=switch, **options)
    with pytest.raises(InvalidParams, match="needs --prompt-lookup"):
        check_dependent_options(given, given)


def test_settings_may_tune_what_is_off_and_switch_on_what_is_tuned():
    tuned = LookupOptions(prompt_lookup_max_draft=5)
    check_dependent_options(LookupOptions(), tuned)
    check_dependent_options(tuned, LookupOptions(prompt_lookup=True, prompt_lookup_max_draft=5))


def test_lookup_files_are_read_as_text(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("日本\n", encoding="utf-8")
    assert read_lookup_files([file]) == ((str(file), "日本\n"),)
    assert read_lookup_files(None) == ()


def test_a_lookup_file_that_is_no_text_is_refused(tmp_path):
    file = tmp_path / "a.bin"
    file.write_bytes(b"ab\xff")
    with pytest.raises(InvalidParams, match="not UTF-8 text: a bad byte at 2"):
        read_lookup_files([file])


def test_tab_offers_the_policies():
    assert complete_policies("g") == ["graded", "gated"]
