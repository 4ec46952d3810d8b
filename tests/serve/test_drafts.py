"""A server that drafts: its options, its replies, and what a request may say about it."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from engine.errors import InvalidParams
from engine.params import LookupPolicy
from mlxcel_cli.serve.settings import settle
from mlxcel_cli.serve_options import SETTINGS, Mutability, ServeOptions
from tests.serve.conftest import Starter, environ_of

COPY = "one two three four five six seven one two three four five six seven one two three"


@pytest.fixture(scope="module")
def drafting(tiny_model, serve_home):
    start = Starter(environ_of(serve_home), tiny_model)
    try:
        # A tiny model's costs are noise: "fixed" drafts whenever something matches.
        yield start("--draft-kind", "prompt-lookup", "--prompt-lookup-policy", "fixed",
                    "--draft-block-size", "5", "--no-prompt-cache")  # fmt: skip
    finally:
        start.end()


def ask(server, **fields):
    reply = server.complete(COPY, max_tokens=200, temperature=0, ignore_eos=True, **fields)
    assert reply.status == 200, reply.body
    return reply.json


@pytest.fixture(scope="module")
def drafted(drafting):
    return ask(drafting)


def test_counts_are_in_the_timings(drafting):
    times = ask(drafting, logit_bias={"97": 100})["timings"]
    assert times["draft_kind"] == "prompt-lookup"
    assert times["draft_rounds"] > 0
    assert 0 < times["draft_n_accepted"] <= times["draft_n"] <= 5 * times["draft_rounds"]


def test_a_request_can_opt_out_and_gets_the_same_text(drafting, drafted):
    plain = ask(drafting, speculative=False)
    assert plain["choices"][0]["text"] == drafted["choices"][0]["text"]
    assert "draft_n" not in plain["timings"]
    assert "draft_kind" not in plain["timings"]


def test_a_request_cannot_choose_how(drafting, drafted):
    told = ask(drafting, **{"speculative.n_max": 1, "speculative.type": "none"})
    assert told["timings"]["draft_n"] == drafted["timings"]["draft_n"]


def test_an_answer_of_a_schema_is_refused_here_as_elsewhere(drafting):
    """vllm#9423: structured output broke while drafts were on."""
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    reply = drafting.chat(response_format=schema)
    assert (reply.status, reply.error["param"]) == (400, "response_format")


def test_a_penalised_row_batched_with_another_leaves_both_as_they_are_alone(drafting):
    """mlx-lm#1472."""
    kinds = ({}, {"repetition_penalty": 1.3, "presence_penalty": 0.5})
    alone = [ask(drafting, **fields)["choices"] for fields in kinds]
    with ThreadPoolExecutor(2) as pool:
        assert [one["choices"] for one in pool.map(lambda k: ask(drafting, **k), kinds)] == alone


def test_a_request_cannot_switch_drafts_on(server):
    told = ask(server, speculative=True, **{"speculative.n_max": 16})
    assert "draft_n" not in told["timings"]


def test_the_start_reports_how_drafts_are_made(drafting):
    notes = "\n".join(drafting.notes)
    assert (
        "drafts: prompt-lookup, up to 5 tokens, policy fixed, while at most 4 answers run" in notes
    )


@pytest.mark.parametrize("warmup", ["--warmup", "--no-warmup"])
def test_what_drafts_cost_is_measured_once_and_kept_for_the_next_start(
    tiny_model, tmp_path, warmup
):
    start = Starter(environ_of(tmp_path / "home"), tiny_model)
    try:
        asked = ("--draft-kind", "prompt-lookup", "--draft-block-size", "3", warmup)
        first = start(*asked)
        ask(first)
        assert first.stop() == 0
        (kept,) = tmp_path.rglob("verify-widths/*.json")
        text = kept.read_text()
        known = json.loads(text)["costs"]
        assert len(known) >= 4
        # Costs that nobody would measure: a second start that measured anew would replace them.
        kept.write_text(text.replace(json.dumps(known), json.dumps([1.0, *[7.25] * 7])))
        second = start(*asked)
        ask(second)
        assert second.stop() == 0
        assert "7.25" in kept.read_text()
    finally:
        start.end()


def test_spec_type_none_wins(start_server):
    server = start_server("--draft-kind", "prompt-lookup", "--spec-type", "none")
    assert "draft_n" not in ask(server)["timings"]


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({"draft_kind": "eagle"}, "--draft-kind", "must be one of prompt-lookup"),
        (
            {"draft_kind": "prompt-lookup", "draft_model": "qwen3"},
            "--draft-model",
            "without a second model",
        ),
        ({"draft_model": "qwen3"}, "--draft-model", "--draft-kind prompt-lookup"),
        ({"draft_block_size": 0}, "--draft-block-size", "from 1 to 64"),
        ({"draft_block_size": 65}, "--draft-block-size", "from 1 to 64"),
        ({"prompt_lookup_max_batch": 0}, "--prompt-lookup-max-batch", "1 or more"),
        ({"prompt_lookup_policy": "eager"}, "--prompt-lookup-policy", "auto, graded"),
        ({"spec_type": "ngram"}, "--spec-type", "none"),
    ],
)
def test_bad_settings_are_refused_before_a_model_is_loaded(options, field, words):
    with pytest.raises(InvalidParams) as caught:
        settle(ServeOptions(**options))
    assert caught.value.field == field
    assert words in str(caught.value)


def test_settings_of_drafts_are_read_only():
    table = SETTINGS
    names = ("draft_kind", "draft_block_size", "prompt_lookup_max_batch", "prompt_lookup_policy")
    assert {table[name].change for name in names} == {Mutability.READ_ONLY}
    with pytest.raises(InvalidParams, match="prompt_lookup_max_batch"):
        settle(ServeOptions()).changed({"prompt_lookup_max_batch": 4})


def test_what_is_said_is_what_the_engine_takes():
    settings = settle(
        ServeOptions(draft_kind="prompt-lookup", draft_block_size=3, prompt_lookup_policy="gated")
    )
    assert settings.speculation is not None
    assert settings.speculation.max_draft == 3
    assert settings.speculation.policy is LookupPolicy.GATED
    assert settle(ServeOptions()).speculation is None
