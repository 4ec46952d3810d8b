"""Rules that mlx-lm 0.32.2 was seen to break, held by this engine; the numbers are its issues."""

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from engine.engine import Engine
from engine.errors import InvalidParams
from engine.finish import FinishCause
from engine.params import SamplingParams, SequenceParams
from engine.sampling.plan import ChainPrograms, DrawPlan
from engine.sampling.row_sampler import RowSampler
from engine.session import Session
from tests.engine.inside import layers_of
from tests.engine.rigs import (
    Watched,
    byte_tokenizer,
    loaded,
    prefill,
    run_alone,
    run_together,
    tiny_engine,
    tiny_model,
)
from tests.engine.session_rigs import said

GREEDY = SamplingParams(temperature=0, seed=0)
FAMILIES = ("llama", "gemma3", "hybrid")

each_family = pytest.mark.parametrize("family", FAMILIES)


def params(*ids: int, **sampling: float) -> SequenceParams:
    values = {"temperature": 1.0, "seed": 1, **sampling}
    return SequenceParams(ids, SamplingParams(**values), max_tokens=8)


# -- rows and their company


@each_family
def test_rows_with_and_without_penalties_share_a_batch(family: str):
    """mlx-lm#1472: mixing rows with and without logits processors crashed."""
    mixed = [
        params(1, 2, 3, repetition_penalty=1.5),
        params(4, 5),
        SequenceParams((6, 7, 8), GREEDY, max_tokens=8),
        params(9, frequency_penalty=1.0, logit_bias={5: 2.0}),
    ]
    together = [answer.tokens for answer in run_together(tiny_engine(family), mixed)]
    assert together == [run_alone(tiny_engine(family), one).tokens for one in mixed]


@each_family
def test_rows_keep_their_own_parameters_while_others_come_and_go(family: str):
    """mlx-lm#1225, #1540: lists of samplers slipped by a row when one left."""
    engine = tiny_engine(family)
    kept = [params(1, 2, i, temperature=0.5 + i / 4, seed=i, top_k=3 + 40 * i) for i in range(3)]
    alone = [run_alone(tiny_engine(family), one).tokens for one in kept]
    passing = [engine.open(params(7, 7, seed=9)) for _ in range(2)]
    seqs = []
    for one in kept:
        seqs.append(engine.open(one))
        prefill(engine, seqs[-1])
    for seq in passing:
        prefill(engine, seq)
    written = {seq: [engine.last_token(seq)] for seq in seqs}
    for step in range(7):
        if step in (2, 4):
            engine.close(passing.pop(0))
        for outcome in engine.step([*passing, *seqs] if step % 2 else [*seqs, *passing]):
            if outcome.seq in written:
                written[outcome.seq].append(outcome.token)
    assert list(written.values()) == alone


@each_family
def test_empty_and_filled_rows_are_admitted_together(family: str):
    """mlx-lm#754, #798, #1141: caches that held nothing yet could not join ones that did."""
    engine = tiny_engine(family)
    empty = engine.open(SequenceParams((1,), GREEDY, max_tokens=4))
    filled = engine.open(SequenceParams(tuple(range(20)), GREEDY, max_tokens=8))
    prefill(engine, filled)
    tokens = [engine.last_token(filled)]
    for _ in range(3):
        tokens += [outcome.token for outcome in engine.step([filled])]
    one = [prefill(engine, empty).token]
    for _ in range(3):
        for outcome in engine.step([empty, filled]):
            (one if outcome.seq == empty else tokens).append(outcome.token)
    short, long = (
        run_alone(tiny_engine(family), SequenceParams(ids, GREEDY, max_tokens=n)).tokens
        for ids, n in (((1,), 4), (tuple(range(20)), 7))
    )
    assert (one, tokens) == (short, long)


@each_family
def test_sixteen_rows_never_read_one_anothers_prompt(family: str):
    """mlx-lm#965: answers leaked between concurrent requests; #1166, #1129: joins of hybrids."""
    rng = Random("facts")
    requests = [
        SequenceParams(tuple(rng.randrange(256) for _ in range(6 + i)), GREEDY, max_tokens=6)
        for i in range(16)
    ]
    engine, judge = tiny_engine(family), tiny_engine(family)
    together = [answer.tokens for answer in run_together(engine, requests)]
    assert together == [run_alone(judge, one).tokens for one in requests]


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3", "hybrid"])
def test_the_engine_bounds_the_context_whatever_caches_a_family_makes(family: str):
    """mlx-lm#615, #126, #1343: max_kv_size is ignored where a family makes its caches."""
    model = tiny_model(family)
    engine = Engine(loaded(model, family, context=512), context_tokens=20)
    answer = run_alone(engine, SequenceParams((1, 2, 3, 4, 5), GREEDY))
    assert answer.last.finish is FinishCause.CONTEXT_EXHAUSTED
    assert 5 + len(answer.tokens) == 20


def test_no_layer_passes_for_a_quantized_cache():
    """mlx-lm#1322: attention takes the quantized path for any cache that has ``bits``."""
    for family in FAMILIES:
        layers = layers_of(tiny_engine(family))
        assert [layer for layer in layers if hasattr(layer, "bits")] == []


# -- sampling


RUN = """
import sys, threading
import mlx.core as mx
from tests.engine.rigs import run_alone, tiny_engine
from engine.params import SamplingParams, SequenceParams

def work():
    params = SequenceParams((1, 2, 3), SamplingParams(temperature=1.0, seed=42), max_tokens=12)
    print(run_alone(tiny_engine(), params).tokens, flush=True)
    mx.clear_streams()

for _ in range(2):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
"""


def test_a_seed_writes_the_same_after_a_restart_and_a_thread_that_used_mlx_ends_cleanly():
    """mlx-lm#1245, #1580, #1620, #1331 (seeds); #1181, #1256 (streams); mlx#3126 (aborts)."""
    here = run_alone(
        tiny_engine(),
        SequenceParams((1, 2, 3), SamplingParams(temperature=1.0, seed=42), max_tokens=12),
    ).tokens
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", RUN],
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (0, f"{here}\n" * 2), done.stderr


@pytest.mark.parametrize(
    "narrow",
    [
        {"top_k": 1, "top_p": 0.01},
        {"top_k": 2, "top_p": 0.0001, "temperature": 0.01},
        {"min_p": 1.0, "top_p": 0.01, "typical_p": 0.01},
        {"top_n_sigma": 0.001, "top_k": 1},
        {"xtc_probability": 1.0, "xtc_threshold": 0.0, "top_k": 1},
    ],
)
def test_filters_together_always_leave_a_token(narrow: dict[str, float]):
    """mlx-lm#388: top-k before top-p could mask everything."""
    answer = run_alone(tiny_engine(), params(1, 2, 3, **narrow))
    assert answer.last.error is None
    assert len(answer.tokens) == 8


@pytest.mark.parametrize(
    "extreme", [{"top_k": 10**6}, {"xtc_probability": 1.0, "xtc_threshold": 0.9}]
)
def test_extreme_values_are_served_as_if_off(extreme: dict[str, float]):
    """mlx-lm#1377: top_k above the vocabulary or an XTC threshold above 0.5 ended the server."""
    assert run_alone(tiny_engine(), params(1, 2, 3, **extreme)).tokens == (
        run_alone(tiny_engine(), params(1, 2, 3)).tokens
    )


def test_an_empty_prompt_and_foreign_ids_are_refused_by_name():
    """Each of these ended mlx-lm's server or wrote out of bounds."""
    with pytest.raises(InvalidParams, match="prompt"):
        SequenceParams(())
    engine = tiny_engine()
    with pytest.raises(InvalidParams, match="logit_bias"):
        engine.open(params(1, logit_bias={259: 1.0}))
    with pytest.raises(InvalidParams, match="stop_ids"):
        engine.open(SequenceParams((1,), stop_ids=frozenset({10**7})))
    seq = engine.open(SequenceParams((1,), GREEDY))
    prefill(engine, seq)
    with pytest.raises(InvalidParams, match="draft"):
        engine.verify(seq, [10**7])


def test_a_penalty_window_of_nothing_is_off():
    """mlx-lm takes repetition_context_size=0 for the whole history (tokens[-0:])."""
    off = params(1, 2, 3, repetition_penalty=1.8, repetition_context_size=0)
    assert run_alone(tiny_engine(), off).tokens == run_alone(tiny_engine(), params(1, 2, 3)).tokens


def test_other_values_never_build_another_program():
    """mlx-lm compiles a kernel for each temperature, top-p and min-p: 0.47 s each on a CPU."""
    programs = ChainPrograms()
    for i in range(20):
        sampler = RowSampler(
            SamplingParams(temperature=0.5 + i / 20, top_p=0.9 - i / 50, min_p=i / 100 + 0.01),
            seed=i,
            choice=0,
            vocab_size=64,
            eos_ids=frozenset(),
            prompt_tokens=1,
        )
        DrawPlan([sampler], programs)
    assert len(programs) == 1


def test_answers_of_no_token_and_of_one(tmp_path: Path):
    """mlx-lm#1689: max_tokens=0 raised UnboundLocalError."""
    engine = tiny_engine(tokenizer=byte_tokenizer(tmp_path))
    watched = Watched(engine)
    for most in (0, 1):
        answer = said(Session(engine).generate(SequenceParams((1, 2), GREEDY, max_tokens=most)))
        assert answer.finish is FinishCause.LENGTH
        assert answer.usage.completion_tokens == most
        assert watched.calls == 2 * most
