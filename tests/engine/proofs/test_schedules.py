"""What a row writes does not depend on its company: random schedules against each row alone.

A difference counts unless it is a near-tie: the other token wins the very draw, its noise
included, once the two logits are moved by 1e-3 together.
"""

import logging
from pathlib import Path
from random import Random

import pytest

from engine.engine import Engine
from engine.models.reference import reference_tokens
from engine.params import SamplingParams, SequenceParams
from tests.engine.mlx_lm_batch import mlx_lm_batch
from tests.engine.proofs.schedules import (
    Request,
    Schedule,
    Written,
    alone,
    near_tie,
    random_requests,
)
from tests.engine.rigs import byte_tokenizer, loaded, run_alone, run_together, tiny_model

LOG = logging.getLogger(__name__)

KINDS = {
    "llama": ("llama", 512),
    "qwen3": ("qwen3", 512),
    "gemma3 below four windows": ("gemma3", 64),
    "gemma3 ring": ("gemma3", 512),
    "hybrid": ("hybrid", 512),
}
SCHEDULES = 60
"""Of each kind; 300 in all."""

EOS = tuple(range(7, 259, 23))


class Bench:
    """The engine that runs schedules and the one where rows run alone, on one model."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.family, context = KINDS[kind]
        self.model = tiny_model(self.family, hidden_size=32, intermediate_size=64)
        tokenizer = byte_tokenizer(folder)
        self.engine, self.judge = (
            Engine(loaded(self.model, self.family, context=context, eos=EOS, tokenizer=tokenizer))
            for _ in range(2)
        )

    def agree(self, request: Request, ours: list[int], theirs: list[int], who: str) -> None:
        """Equal, or apart from a shown near-tie on."""
        if ours == theirs:
            return
        at = next(
            (i for i, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]),
            min(len(ours), len(theirs)),
        )
        assert at < min(len(ours), len(theirs)), (who, request, ours, theirs)
        tie = near_tie(self.judge, request, theirs[:at], theirs[at], ours[at])
        LOG.info("%s: token %d is %d for %d, a near-tie: %s", who, at, ours[at], theirs[at], tie)
        assert tie, (who, request, ours, theirs)

    def run(self, seed: int) -> Schedule:
        rng = Random(f"{self.family} {seed}")
        requests = random_requests(rng)
        expected = [alone(self.judge, request) for request in requests]
        schedule = Schedule(self.engine, requests, expected, rng)
        for row, written in zip(schedule.rows, schedule.run(), strict=True):
            self.judged(row.request, written, row.expected)
        return schedule

    def judged(self, request: Request, written: Written, expected: Written) -> None:
        count = len(written.tokens)
        if written.cancelled:
            self.agree(request, written.tokens, expected.tokens[:count], "in company")
            return
        self.agree(request, written.tokens, expected.tokens, "in company")
        assert written.finish == expected.finish or written.tokens != expected.tokens


@pytest.fixture(scope="module", params=KINDS)
def bench(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(request.param, tmp_path_factory.mktemp("tokenizer"))


@pytest.mark.parametrize("tens", range(SCHEDULES // 10))
def test_a_row_writes_the_same_in_any_schedule_as_alone(bench: Bench, tens: int):
    # mlx-lm#1225, #1540: rows keep their own parameters; #1472: rows with and without penalties
    # share steps; #1166, #1129: hybrids join mid-decode; #983, #742: lengths around the window.
    schedules = [bench.run(10 * tens + i) for i in range(10)]
    drafts = bench.engine.choice.kind != "recurrent"
    assert (sum(schedule.verified for schedule in schedules) > 0) == drafts
    assert (sum(schedule.together for schedule in schedules) > 0) == drafts


def test_greedy_rows_write_what_mlx_lm_writes(bench: Bench):
    rng = Random("greedy")
    for _ in range(12):
        prompt = tuple(rng.randrange(256) for _ in range(rng.choice((1, 2, 15, 16, 17, 33))))
        params = SequenceParams(prompt, SamplingParams(temperature=0, seed=0), max_tokens=16)
        request = Request(params, chunk=8, hooks=False, arrival=0, cancel=None)
        theirs = reference_tokens(
            bench.model, prompt, max_tokens=16, eos_ids=frozenset(EOS), chunk_tokens=8
        )
        bench.agree(request, alone(bench.judge, request).tokens, theirs, "mlx-lm")


def test_greedy_batches_write_what_mlx_lms_batch_generator_writes(bench: Bench):
    # mlx-lm#965: answers leaked between requests; #754, #798: rows of very different lengths.
    rng = Random("batch")
    prompts = [tuple(rng.randrange(256) for _ in range(n)) for n in (1, 3, 15, 16, 17, 32, 40, 9)]
    theirs = mlx_lm_batch(bench.model, prompts, max_tokens=10)
    requests = [
        SequenceParams(
            prompt, SamplingParams(temperature=0, seed=0), max_tokens=10, ignore_eos=True
        )
        for prompt in prompts
    ]
    # ignore_eos keeps end tokens from being drawn; mlx-lm's rows are cut where they drew one.
    ours = run_together(bench.engine, requests, chunk=2048)
    for params, answer, tokens in zip(requests, ours, theirs, strict=True):
        end = next((i for i, token in enumerate(tokens) if token in EOS), len(tokens))
        request = Request(params, chunk=2048, hooks=False, arrival=0, cancel=None)
        bench.agree(request, answer.tokens[:end], tokens[:end], "BatchGenerator")


def test_a_seed_writes_the_same_alone_and_in_any_batch(bench: Bench):
    # mlx-lm#1245, #1580, #1620, #1331: seeds ignored, or right only one row at a time.
    rng = Random("seeds")
    requests = [
        SequenceParams(
            tuple(rng.randrange(256) for _ in range(rng.randint(1, 24))),
            SamplingParams(temperature=1.0, seed=rng.randrange(2**53)),
            max_tokens=8,
        )
        for _ in range(50)
    ]
    solo = [run_alone(bench.judge, params).tokens for params in requests]
    for width in (5, 10):
        for start in range(0, 50, width):
            group = requests[start : start + width]
            answers = run_together(bench.engine, group, pipelined=width == 5)
            for i, answer in enumerate(answers):
                request = Request(group[i], chunk=8, hooks=False, arrival=0, cancel=None)
                bench.agree(request, answer.tokens, solo[start + i], f"in {width} rows")
    assert len({tuple(tokens) for tokens in solo}) > 40
