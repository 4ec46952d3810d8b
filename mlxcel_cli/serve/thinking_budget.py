"""Ends a model's thoughts after so many tokens: their closing mark comes next, then the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from engine.errors import InvalidParams
from engine.text.thinking import TextKind, ThinkingFilter
from mlxcel_cli.serve.asking import Asked
from mlxcel_cli.serve.served_model import ServedModel

if TYPE_CHECKING:
    import numpy as np

    from engine.text.decoder import StreamDecoder

UNBOUNDED = -1


class ThinkingBudget:
    """Row hooks (`engine.rows.RowHooks`) that let a model think no longer than it may.

    Args:
        decoder: a fresh one to which the marks are text; the answer becomes text here once more.
        thinking: a fresh one, with the model's marks.
        close_ids: the tokens of the mark that ends its thoughts.
        prompt_tokens: length of the prompt.
        tokens: how many its thoughts may take, over the whole answer.
        vocab_size: width of the logits.
    """

    def __init__(
        self,
        decoder: StreamDecoder,
        thinking: ThinkingFilter,
        close_ids: Sequence[int],
        *,
        prompt_tokens: int,
        tokens: int,
        vocab_size: int,
    ) -> None:
        self._decoder = decoder
        self._filter = thinking
        self._close_ids = tuple(close_ids)
        self._seen = prompt_tokens
        self._left = tokens
        self._vocab_size = vocab_size
        self._closing = 0
        """Tokens of the mark that are written by now."""

    def mask(self, ids: Sequence[int]) -> np.ndarray | None:
        """Only the mark's next token, once the thoughts have taken what they may."""
        for token in ids[self._seen :]:
            self._read(token)
        self._seen = len(ids)
        if self._left > 0 or not self._is_thinking:
            return None
        import numpy as np

        mask = np.full(self._vocab_size, -np.inf, np.float32)
        mask[self._close_ids[self._closing]] = 0.0
        return mask

    def finish(self, ids: Sequence[int]) -> None:
        """Nothing: an answer follows."""

    @property
    def _is_thinking(self) -> bool:
        return self._filter.kind is TextKind.REASONING

    def _read(self, token: int) -> None:
        is_spent = self._left <= 0 and self._is_thinking
        self._left -= self._is_thinking
        self._filter.push(self._decoder.push(token))
        self._closing = self._closing + 1 if is_spent and self._is_thinking else 0


def bounded(asked: Asked, model: ServedModel, tokens: int | None) -> Asked:
    """The same rows, whose thoughts take at most ``tokens``; None or -1: as many as they like.

    A model that has no thoughts keeps to any bound.

    Raises:
        InvalidParams: the bound is below -1.
    """
    if tokens is None or tokens == UNBOUNDED:
        return asked
    if tokens < 0:
        raise InvalidParams("thinking_budget", f"must be -1 (no bound), 0 or more, got {tokens}")
    marks = () if model.template is None else model.template.thinking_marks
    if not marks:
        return asked
    close_ids = model.tokenizer.encode(marks[0].close, parse_special=True)
    rows = tuple(
        replace(
            row,
            hooks=ThinkingBudget(
                model.tokenizer.decoder(keep_texts=row.keep_texts),
                ThinkingFilter(marks, inside=asked.prompt_of(index).opens_thinking),
                close_ids,
                prompt_tokens=len(row.params.prompt_ids),
                tokens=tokens,
                vocab_size=model.facts.vocab_size,
            ),
        )
        for index, row in enumerate(asked.rows)
    )
    return replace(asked, rows=rows)
