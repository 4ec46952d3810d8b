"""Thoughts that take no more tokens than they may: their closing mark comes next."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InvalidParams
from engine.scheduler.queue import Priority
from engine.text.answer_text import AnswerText, ThinkingMarks
from mlxcel_cli.serve.anthropic.request import messages_spec
from mlxcel_cli.serve.generation import Defaults, GenerationSpec, plan_generation
from mlxcel_cli.serve.prompts import EncodedPrompt
from mlxcel_cli.serve.row_hooks import ThinkingBudget
from tests.serve.conftest import HELLO, Starter, environ_of
from tests.serve.test_anthropic import model, request

MARKS = (ThinkingMarks("<t>", "</t>"),)
CLOSE = tuple(map(ord, MARKS[0].close))
ONLY_A = {"logit_bias": {"65": 100}, "temperature": 0}


class Letters:
    """A decoder of tokens that are letters."""

    push = staticmethod(chr)


def answer(wanted: str, tokens: int, *, inside: bool) -> str:
    """What a model that wants to write ``wanted`` writes under a budget."""
    text = AnswerText(MARKS, inside=inside)
    budget = ThinkingBudget(Letters(), text, CLOSE, prompt_tokens=2, tokens=tokens, vocab_size=128)
    ids, letters = [0, 0], iter(wanted)
    while len(ids) < 200:
        mask = budget.mask(ids)
        if mask is None:
            letter = next(letters, None)
            if letter is None:
                break
            ids.append(ord(letter))
        else:
            (allowed,) = np.flatnonzero(np.isfinite(mask))
            ids.append(int(allowed))
        assert budget.finish(ids) is None
    return "".join(map(chr, ids[2:]))


@pytest.mark.parametrize(
    ("wanted", "tokens", "inside", "written"),
    [
        ("aaaa</t>b", 9, True, "aaaa</t>b"),
        ("aaaabbbb", 4, True, "aaaa</t>bbbb"),
        ("aa", 0, True, "</t>aa"),
        ("aa", 0, False, "aa"),
        ("x<t>aaabb", 3, False, "x<t>aaa</t>bb"),
        ("a</t>b<t>aab", 5, True, "a</t>b<t></t>aab"),
    ],
)
def test_the_closing_mark_follows_the_last_thought_that_may_be(wanted, tokens, inside, written):
    assert answer(wanted, tokens, inside=inside) == written


@given(st.text("a<t>/", max_size=40), st.integers(0, 12), st.booleans())
def test_no_thoughts_are_longer_than_they_may_and_nothing_else_is_changed(wanted, tokens, inside):
    written = answer(wanted, tokens, inside=inside)
    text = AnswerText(MARKS, inside=inside)
    text.push(written)
    text.flush()
    assert len(text.reasoning) <= tokens + len(CLOSE)
    if len(wanted) < tokens:
        assert written == wanted


def hooks_of(model, budget):
    """What bounds the rows of a request with this budget."""
    spec = GenerationSpec(has_reasoning=True, thinking_budget=budget)
    prompts = (EncodedPrompt((1,), "a"),)
    (row,) = plan_generation(spec, prompts, model, Defaults({}), "r").rows
    return row.hooks


def test_a_model_without_thoughts_keeps_to_any_bound():
    models = {marks: model(marks=marks) for marks in ((), MARKS)}
    for one in models.values():
        one.generation = {}
        one.facts.vocab_size = 128
        one.tokenizer.encode = lambda text, **_: tuple(map(ord, text))
        one.tokenizer.decoder = lambda **_: Letters()
    assert hooks_of(models[()], 5) is None
    assert hooks_of(models[MARKS], None) is hooks_of(models[MARKS], -1) is None
    assert isinstance(hooks_of(models[MARKS], 5), ThinkingBudget)
    with pytest.raises(InvalidParams) as caught:
        hooks_of(models[()], -2)
    assert caught.value.field == "thinking_budget"


def test_anthropic_s_budget_is_the_same_bound():
    thinking = {"type": "enabled", "budget_tokens": 2000}
    assert messages_spec(request(thinking=thinking), Priority.NORMAL).thinking_budget == 2000
    assert messages_spec(request(), Priority.NORMAL).thinking_budget is None


@pytest.fixture(scope="module")
def thinker(tmp_path_factory):
    """A tiny model whose template opens its thoughts, on a server."""
    from tests.engine.models.tiny import write_tiny

    folder = write_tiny(tmp_path_factory.mktemp("models") / "thinker")
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {"chat_template": config["chat_template"] + "<think>"}))
    starter = Starter(environ_of(tmp_path_factory.mktemp("home")), folder)
    yield starter("--no-warmup")
    starter.end()


@pytest.mark.parametrize("name", ["thinking_budget", "thinking_budget_tokens"])
def test_a_chat_s_thoughts_end_where_they_must_and_its_answer_follows(thinker, name):
    reply = thinker.chat(HELLO, max_tokens=20, n=2, **{name: 5}, **ONLY_A).json
    for choice in reply["choices"]:
        assert choice["message"]["reasoning_content"] == "A" * 5
        assert choice["message"]["content"] == "A" * (20 - 5 - len("</think>"))


def test_without_a_budget_reasoning_continues(thinker):
    for more in ({}, {"thinking_budget": -1}):
        (choice,) = thinker.chat(HELLO, max_tokens=20, **more, **ONLY_A).json["choices"]
        assert choice["message"]["reasoning_content"] == "A" * 20
    reply = thinker.chat(HELLO, max_tokens=2, thinking_budget=-2)
    assert (reply.status, reply.error["param"]) == (400, "thinking_budget")


def test_the_document_has_the_field_and_text_completions_refuse_it(server):
    schemas = server.ask("GET", "/openapi.json").json["components"]["schemas"]
    assert "enum" not in schemas["ChatRequest"]["properties"]["thinking_budget"]
    reply = server.complete(max_tokens=1, thinking_budget=3)
    assert (reply.status, reply.error["param"]) == (400, "thinking_budget")
