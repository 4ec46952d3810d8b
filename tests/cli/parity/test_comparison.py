"""Variants agree on every storage kind, and each difference is seen and measured."""

from dataclasses import replace

import mlx.core as mx
import pytest
from mlx_lm.models import llama

from engine.models import cpu_forms
from engine.models.load import load
from engine.models.reference import forced_choices, reference_logits, reference_tokens
from mlxcel_cli.parity.comparison import (
    ParityRequest,
    VariantUnfit,
    compare_forced,
    compare_variants,
    parity_cases,
)
from mlxcel_cli.parity.engine_variants import engine_tokens, mlx_lm_tokens
from mlxcel_cli.parity.run import known_variants
from tests.engine.models.tiny import VOCAB_SIZE, write_tiny
from tests.engine.rigs import HYBRID

PROMPT = tuple(range(40, 75)) + tuple(range(40, 60))


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return load(write_tiny(tmp_path_factory.mktemp("models") / "tiny"))


def request(case: str = "greedy", **changes) -> ParityRequest:
    plain = ParityRequest(PROMPT, parity_cases(7)[case], max_tokens=16, chunk_tokens=16, batch=3)
    return replace(plain, **changes)


def other_at(index: int, token: int):
    """A variant that writes the wrong token at one place."""

    def tokens(loaded, request):
        right = engine_tokens(loaded, request)
        return (*right[:index], token, *right[index + 1 :])

    return tokens


@pytest.mark.parametrize("family", ["llama", "gemma3", "hybrid"])
@pytest.mark.parametrize("context", [64, 512])
def test_every_variant_of_the_engine_writes_the_same_tokens(family, context, tmp_path):
    shape = HYBRID if family == "hybrid" else {}
    base = "llama" if family == "hybrid" else family
    model = load(write_tiny(tmp_path / "model", base, **shape))
    asked = [
        (1, request(case, prompt_ids=PROMPT[:40], context_tokens=context))
        for case in parity_cases(7)
    ]
    variants = dict(known_variants())
    del variants["generate"], variants["http"]
    pairs = list(compare_variants(model, asked, variants, near_tie=1e-3))
    assert len(pairs) == 3 * (len(variants) - 1)
    assert [pair for pair in pairs if pair.is_decided] == []
    unrun = {pair.variants[1] for pair in pairs if pair.not_run}
    # Sixteen tokens of a model that knows nothing repeat too little to be drafted.
    assert unrun - {"lookup"} == {"mlx-lm"}
    if family == "hybrid":
        assert all(pair.not_run for pair in pairs if pair.variants[1] == "lookup")
    compared = [pair for pair in pairs if not pair.not_run and pair.divergence is None]
    assert len(compared) >= 12
    assert min(pair.tokens[0] for pair in compared) >= 1


@pytest.mark.parametrize("case", ["greedy", "penalised", "seeded"])
def test_a_wrong_token_is_a_mismatch_with_its_place_and_distance(loaded, case):
    right = engine_tokens(loaded, request(case))
    wrong = (right[5] + 1) % 250
    variants = {"engine": engine_tokens, "broken": other_at(5, wrong)}
    (pair,) = compare_variants(loaded, [(1, request(case))], variants, near_tie=1e-3)
    found = pair.divergence
    assert (found.index, found.ids, pair.is_decided) == (5, (right[5], wrong), True)
    assert found.gap >= found.top_two_gap > 1e-3
    if case == "greedy":
        _, (logits,) = reference_logits(loaded.model, PROMPT + right[:5], 1, chunk_tokens=16)
        apart = (logits[right[5]] - logits[wrong]).item()
        assert found.gap == pytest.approx(apart, abs=1e-5)


def test_the_reference_runs_on_mlx_lm_s_own_functions(loaded, monkeypatch):
    monkeypatch.setattr(cpu_forms, "_pays", lambda: True)
    cpu_forms.use_cpu_forms()
    ours, used = llama.swiglu, []
    assert ours is cpu_forms.swiglu

    def watched(call):
        def reference(*args, **kw):
            used.append(llama.swiglu)
            return call(*args, **kw)

        return reference

    monkeypatch.setattr("mlxcel_cli.parity.comparison.reference_logits", watched(reference_logits))
    monkeypatch.setattr("mlxcel_cli.parity.comparison.forced_choices", watched(forced_choices))
    monkeypatch.setattr(
        "mlxcel_cli.parity.engine_variants.reference_tokens", watched(reference_tokens)
    )
    wrong = {"mlx-lm": mlx_lm_tokens, "broken": other_at(5, 1)}
    assert len(list(compare_variants(loaded, [(1, request())], wrong, near_tie=1e-3))) == 1
    (forced,) = compare_forced(loaded, [(1, request())], {"engine": engine_tokens}, decided=1e-3)
    assert forced.decided == 0
    assert len(used) == 3
    assert ours not in used
    assert llama.swiglu is ours


def test_an_answer_that_ends_too_early_is_a_mismatch(loaded):
    right = engine_tokens(loaded, request())
    variants = {"engine": engine_tokens, "short": lambda *_: right[:4]}
    (pair,) = compare_variants(loaded, [(1, request())], variants, near_tie=1e-3)
    assert pair.divergence.ids == (right[4], None)
    assert pair.tokens == (16, 4)
    assert pair.is_decided


def test_the_worse_token_s_distance_counts_even_where_the_best_two_tie(loaded, monkeypatch):
    tied = mx.zeros(VOCAB_SIZE).at[mx.array([8, 9])].add(mx.array([5.0, 5.0]))
    monkeypatch.setattr(
        "mlxcel_cli.parity.comparison.reference_logits", lambda *_, **__: ([8], [tied])
    )
    variants = {"first": lambda *_: (8,), "tied": lambda *_: (9,), "wrong": lambda *_: (10,)}
    tie, wrong = compare_variants(loaded, [(1, request())], variants, near_tie=1e-3)
    assert (tie.divergence.gap, tie.is_decided) == (0.0, False)
    assert (wrong.divergence.gap, wrong.divergence.top_two_gap, wrong.is_decided) == (5.0, 0, True)


def test_logits_that_are_no_numbers_are_a_mismatch(loaded, monkeypatch):
    nan = mx.full((VOCAB_SIZE,), float("nan"))
    monkeypatch.setattr(
        "mlxcel_cli.parity.comparison.reference_logits", lambda *_, **__: ([8], [nan])
    )
    variants = {"first": lambda *_: (8,), "other": lambda *_: (9,)}
    (pair,) = compare_variants(loaded, [(1, request())], variants, near_tie=1e-3)
    assert pair.is_decided


def test_an_unfit_variant_is_reported_and_is_no_mismatch(loaded):
    def unfit(*_):
        raise VariantUnfit("no such thing here")

    variants = {"engine": engine_tokens, "unfit": unfit}
    (pair,) = compare_variants(loaded, [(1, request())], variants, near_tie=1e-3)
    assert (pair.not_run, pair.divergence, pair.is_decided) == ("no such thing here", None, False)


def test_the_reference_follows_an_answer_and_counts_what_it_would_not_have_written(loaded):
    right = engine_tokens(loaded, request())
    wrong = (right[5] + 1) % 250
    variants = {"engine": engine_tokens, "broken": other_at(5, wrong)}
    good, bad = compare_forced(loaded, [(1, request())], variants, decided=1e-3)
    assert (good.positions, good.differing, good.decided) == (16, 0, 0)
    assert bad.decided >= 1
    assert bad.largest_gap > 1e-3
    assert list(compare_forced(loaded, [(1, request())], variants, decided=1e9))[1].decided == 0
