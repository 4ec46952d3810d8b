"""Every family of mlx-lm that a tiny model can be built of runs behind the engine, and rightly.

`docs/families.md` lists what each of them keeps; these tests hold the list to the truth.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import pytest

from engine.engine import Engine
from engine.errors import UnsupportedModel
from engine.kv.choose import FULL_WINDOW_FACTOR, choose_storage
from engine.models import cpu_forms
from engine.models.mlxlm import import_mlx_lm, model_classes
from engine.models.reference import reference_logits
from engine.outcome import SeqId
from engine.params import SamplingParams, SequenceParams
from engine.prefill import plan_prefill
from tests.engine.proofs.sweep import CHUNK, PROMPTS, Report, difference, sweep
from tests.engine.proofs.tiny_families import FAMILIES, NOT_RUN, build
from tests.engine.proofs.tiny_geometry import VOCAB, WINDOW
from tests.engine.rigs import loaded

PAGE = Path(__file__).parents[3] / "docs" / "families.md"

CLOSE = 1e-4
"""Largest difference of a float32 logit where mlx-lm orders its sums in another way."""

SHORT = FULL_WINDOW_FACTOR * WINDOW
LONG = 512

BITWISE = {"dense", "one row at a time"}
"""Storages whose layout for one row is mlx-lm's own."""


def check(report: Report) -> None:
    if report.kind in BITWISE:
        assert report.alone == 0
    assert max(report.alone, report.together, report.verified) <= CLOSE, report
    assert len(report.ties) <= 1, report.ties


def rows_of_page() -> dict[str, list[str]]:
    """The cells of every table row of the page, by the module in the first one."""
    lines = re.findall(r"^\| `([^`]+)` \|(.*)\|$", PAGE.read_text(), re.MULTILINE)
    return {module: [cell.strip() for cell in rest.split("|")] for module, rest in lines}


@pytest.mark.parametrize("module", FAMILIES)
def test_a_family_gives_mlx_lms_logits_alone_and_in_a_ragged_batch(module: str):
    # mlx-lm#748: families that read the offset as one number break in a batch.
    model = build(module)
    report = sweep(model, module, context=LONG)
    check(report)
    kinds = [report.kind]
    assert report.verifies_together == (report.verifies and report.batches)
    if report.kind == "ring":
        short = sweep(model, module, context=SHORT)
        check(short)
        kinds.insert(0, short.kind)
    assert rows_of_page()[module] == [", ".join(kinds), "yes" if report.verifies else "no"]


CUT_DEPENDENT = {"plamo3"}
"""Families whose numbers depend on how a prompt is cut; the page says so."""


@pytest.mark.parametrize("module", FAMILIES)
def test_a_prompt_gives_the_same_numbers_however_it_is_cut(module: str):
    model = build(module)
    (whole,), (cut,) = (
        reference_logits(model, PROMPTS[0], 1, chunk_tokens=tokens)[1] for tokens in (2048, CHUNK)
    )
    depends = difference(whole, cut) > CLOSE
    assert depends == (module in CUT_DEPENDENT)
    assert depends == (f"`{module}`'s numbers depend on how a prompt is cut" in PAGE.read_text())


STATEFUL = [module for module in FAMILIES if "recurrent" in rows_of_page()[module][0]]


@pytest.mark.parametrize("module", [*STATEFUL, "longcat_flash_ngram"])
def test_short_prompts_join_a_step_with_the_numbers_they_have_alone(module: str):
    # recurrent_gemma scales a row's first token otherwise than one behind a state of zeros;
    # longcat_flash_ngram's state grows with the first tokens.
    model = build(module)
    prompts = ((7, 5, 6, 2, 9), (3,), (5,), (5, 8))
    engine = Engine(loaded(model, module, vocab=VOCAB, context=LONG))
    expected: dict[SeqId, Iterator[tuple[int, mx.array]]] = {}
    for prompt in prompts:
        params = SequenceParams(prompt, SamplingParams(temperature=0, logprobs=1), max_tokens=9)
        seq = engine.open(params)
        for chunk in [*plan_prefill(prompt_tokens=len(prompt))][:-1]:
            assert engine.prefill(seq, chunk).first is None
        engine.join(seq)
        expected[seq] = iter(zip(*reference_logits(model, prompt, 5), strict=True))
        for outcome in engine.step(expected):
            assert outcome.error is None
            assert outcome.logprobs is not None
            token, logits = next(expected[outcome.seq])
            assert outcome.token == token
            of_token = (logits[token] - mx.logsumexp(logits)).item()
            assert abs(outcome.logprobs.chosen.logprob - of_token) < CLOSE


@pytest.mark.parametrize("module", FAMILIES)
def test_a_family_gives_mlx_lms_logits_on_the_fast_forms_too(module: str, monkeypatch):
    monkeypatch.setattr(cpu_forms, "_pays", lambda: True)
    model = build(module)
    cpu_forms.use_cpu_forms()
    report = sweep(model, module, context=LONG, judging=cpu_forms.stock_forms)
    assert max(report.alone, report.together, report.verified) <= CLOSE, report


def test_every_module_of_mlx_lm_runs_or_is_listed_with_the_reason():
    import_mlx_lm()
    import mlx_lm.models

    folder = Path(next(iter(mlx_lm.models.__path__)))
    modules = {
        path.stem
        for path in folder.glob("*.py")
        if re.search(
            r"^(class Model\b|from \.(?!base).* import Model\b)", path.read_text(), re.MULTILINE
        )
    }
    assert modules == set(FAMILIES) | set(NOT_RUN)
    assert len(FAMILIES) >= 100


def test_the_page_lists_what_does_not_run_with_the_same_reason():
    page = rows_of_page()
    assert set(page) == set(FAMILIES) | set(NOT_RUN)
    assert {module: page[module] for module in NOT_RUN} == {
        module: [reason] for module, reason in NOT_RUN.items()
    }


@pytest.mark.parametrize(
    ("module", "scaling"),
    [("llama", {"rope_type": "dynamic", "factor": 2.0}), ("internlm3", None)],
)
def test_positions_that_follow_the_length_of_one_row_are_not_batched(module: str, scaling):
    # mlx-lm's rotation takes max(int, offsets): ValueError in any ragged batch.
    changes = {"rope_scaling": scaling or {"rope_type": "dynamic", "factor": 2.0}}
    model = build(module, max_position_embeddings=16, layer_types=None, **changes)
    choice = choose_storage(model, family=module, context_tokens=LONG)
    assert choice.kind == "one row at a time"
    assert "length" in choice.why
    check(sweep(model, module, context=LONG))


def test_grouped_heads_are_masked_row_by_row_where_a_family_masks_scores_itself():
    # gemma2's scores have an axis more than mlx-lm's batched masks: with two rows and two key
    # heads the axes fit by chance and the rows see one another's keys.
    check(sweep(build("gemma2"), "gemma2", context=LONG))
    check(sweep(build("gemma2", num_key_value_heads=4), "gemma2", context=LONG))


def test_a_family_that_ends_the_program_when_imported_is_refused(capsys: pytest.CaptureFixture):
    with pytest.raises(UnsupportedModel, match=r"olmo.*package"):
        model_classes({"model_type": "olmo"})
    assert capsys.readouterr().out == ""
