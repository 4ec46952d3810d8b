"""Engines on tiny models for tests: random ones of mlx-lm's classes, and the cycle model."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mlx.core as mx
from mlx import nn
from mlx.utils import tree_map

from engine.engine import Engine
from engine.models.mlxlm import model_classes
from engine.outcome import SeqId, StepOutcome
from engine.params import SequenceParams
from engine.prefill import plan_prefill
from engine.text.tokenizer import Tokenizer
from tests.engine.inside import inner_model, put_model, row_of, storage_of
from tests.engine.models.tiny import _SHARED, FAMILIES, write_tokenizer

HYBRID: dict[str, Any] = {
    "model_type": "qwen3_next",
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 3,
    "full_attention_interval": 2,
    "num_experts": 0,
    "num_experts_per_tok": 0,
    "decoder_sparse_step": 1,
    "shared_expert_intermediate_size": 0,
    "mlp_only_layers": [],
    "moe_intermediate_size": 0,
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "head_dim": 16,
    "tie_word_embeddings": False,
}
"""Attention and linear-attention layers in turn."""


def tiny_model(family: str, *, seed: int = 0, **config: Any) -> Any:
    """A random float32 model whose greedy answers wander through the vocabulary."""
    values = {**_SHARED, **(HYBRID if family == "hybrid" else FAMILIES[family]), **config}
    model_class, args_class = model_classes(values)
    mx.random.seed(seed)
    model = model_class(args_class.from_dict(values))
    # Default weights are so small that every prompt gives the same token for ever.
    model.update(tree_map(lambda a: a * 4 if a.ndim > 1 else a, model.parameters()))
    mx.eval(model.parameters())
    return model


def loaded(
    model: Any,
    family: str,
    *,
    vocab: int = 259,
    context: int = 512,
    eos: Iterable[int] = (),
    tokenizer: Tokenizer | None = None,
) -> Any:
    """What `Engine` takes."""
    facts = SimpleNamespace(
        name="tiny", path=Path("tiny"), family=family, vocab_size=vocab, context_tokens=context
    )
    return SimpleNamespace(model=model, facts=facts, tokenizer=tokenizer, eos_ids=frozenset(eos))


def tiny_engine(
    family: str = "llama",
    *,
    seed: int = 0,
    context: int = 512,
    eos: Iterable[int] = (),
    tokenizer: Tokenizer | None = None,
    **config: Any,
) -> Engine:
    """An engine on `tiny_model`."""
    model = tiny_model(family, seed=seed, **config)
    return Engine(loaded(model, family, context=context, eos=eos, tokenizer=tokenizer))


def byte_tokenizer(folder: Path) -> Tokenizer:
    """One token a byte, 256 to 258 are special."""
    write_tokenizer(folder)
    return Tokenizer.from_folder(folder)


class Watched:
    """Stands before a model: notes its logits, and fails or spoils the forwards it is told to."""

    def __init__(self, engine: Engine) -> None:
        self._model = inner_model(engine)
        put_model(engine, self)
        self.log: list[str] = []
        """``forward``, and whatever else a test puts between."""
        self.logits: list[mx.array] = []
        self.fed: list[mx.array] = []
        self.fails_in: Callable[[int], bool] = lambda call: False
        self.spoils: Callable[[int, mx.array], mx.array] = lambda call, logits: logits
        self.error: Exception = RuntimeError("the device fell over")

    @property
    def calls(self) -> int:
        """Forwards so far, the failed ones included."""
        return self.log.count("forward")

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        self.log.append("forward")
        logits = self._model(tokens, cache=cache)
        if self.fails_in(self.calls):
            raise self.error
        logits = self.spoils(self.calls, logits)
        self.fed.append(tokens)
        self.logits.append(logits)
        return logits


def prefill(engine: Engine, seq: SeqId, *, chunk: int = 8, cached: int = 0) -> StepOutcome:
    """All parts of a row's prompt; the first token's outcome."""
    tokens = len(row_of(engine, seq).params.prompt_ids)
    first = None
    for part in plan_prefill(prompt_tokens=tokens, cached_tokens=cached, chunk_tokens=chunk):
        first = engine.prefill(seq, part).first
        if first is not None and first.is_final:
            break
    assert first is not None
    return first


def begun(engine: Engine, *prompts: tuple[int, ...], **params: Any) -> list[SeqId]:
    """Rows that decode."""
    seqs = []
    for ids in prompts:
        seqs.append(engine.open(SequenceParams(ids, **params)))
        prefill(engine, seqs[-1])
    return seqs


@dataclass
class Answer:
    """What a row came to."""

    tokens: list[int]
    last: StepOutcome


def run_alone(engine: Engine, params: SequenceParams, **kw: Any) -> Answer:
    """One request from open to close, pipelined as the session does it."""
    return run_together(engine, [params], **kw)[0]


def run_together(
    engine: Engine, requests: Sequence[SequenceParams], *, chunk: int = 8, pipelined: bool = True
) -> list[Answer]:
    """All requests in one batch until each is done."""
    seqs, answers, live = [], {}, []
    for params in requests:
        seq = engine.open(params)
        seqs.append(seq)
        first = prefill(engine, seq, chunk=chunk)
        answers[seq] = Answer([], first)
        if take(answers, first):
            engine.close(seq)
        else:
            live.append(seq)
    ticket = None
    while live:
        ticket = ticket or engine.submit(live)
        ahead = [seq for seq in live if engine.wants_step(seq)] if pipelined else []
        later = engine.submit(ahead) if ahead else None
        for outcome in engine.collect(ticket):
            if take(answers, outcome):
                live.remove(outcome.seq)
                engine.close(outcome.seq)
        ticket = later
    return [answers[seq] for seq in seqs]


def take(answers: dict[SeqId, Answer], outcome: StepOutcome) -> bool:
    """Note an outcome; whether the row is over."""
    answer = answers[outcome.seq]
    answer.last = outcome
    if outcome.token is not None and outcome.finish != "eos":
        answer.tokens.append(outcome.token)
    return outcome.is_final


def assert_length_law(engine: Engine, seqs: Iterable[SeqId]) -> None:
    """KV holds prompt + written - 1 tokens, and one more for each ticket in flight."""
    for seq in seqs:
        row = row_of(engine, seq)
        held = storage_of(engine).length(row.slot)
        assert held == row.prompt_tokens + row.written - 1 + len(row.in_flight), row


class CycleModel(nn.Module):
    """Token t is always followed by (t + 1) mod vocab: greedy output is known in advance."""

    VOCAB = 16

    def __new__(
        cls, *, vocab: int = VOCAB, period: int | None = None, certainty: float = 8.0
    ) -> Any:
        """A llama whose attention and MLP are zero and whose head maps t to t + 1."""
        model = tiny_model(
            "llama",
            hidden_size=vocab,
            vocab_size=vocab,
            num_hidden_layers=1,
            head_dim=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=vocab,
        )
        model.update(tree_map(mx.zeros_like, model.parameters()))
        model.model.embed_tokens.weight = mx.eye(vocab)
        model.model.norm.weight = mx.ones((vocab,))
        period = vocab if period is None else period
        head = mx.zeros((vocab, vocab))
        for token in range(vocab):
            head[(token + 1) % period if token < period else 0, token] = certainty
        model.lm_head.weight = head
        mx.eval(model.parameters())
        return model


def cycle_engine(
    *,
    context: int = 512,
    eos: Iterable[int] = (),
    vocab: int = 16,
    period: int | None = None,
    certainty: float = 8.0,
    tokenizer: Tokenizer | None = None,
) -> Engine:
    """An engine on the cycle model; ``certainty`` times sqrt(vocab) is the next token's logit."""
    model = CycleModel(vocab=vocab, period=period, certainty=certainty)
    return Engine(
        loaded(model, "llama", vocab=vocab, context=context, eos=eos, tokenizer=tokenizer)
    )
