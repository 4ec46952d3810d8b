"""An engine that keeps what its rows wrote, for arms that hand rows to a front end."""

from typing import TYPE_CHECKING

from engine.engine import Engine
from engine.outcome import SeqId
from engine.parity import ParityRequest

if TYPE_CHECKING:
    from engine.models.load import LoadedModel


class NotingEngine(Engine):
    """An engine that keeps the answers of the rows it closes.

    Args:
        loaded: the model.
        request: what its rows answer; the length of its prompt says where answers begin.
    """

    def __init__(self, loaded: "LoadedModel", request: ParityRequest) -> None:
        super().__init__(loaded, context_tokens=request.context_tokens)
        self._prompt_tokens = len(request.prompt_ids)
        self._closed: dict[SeqId, tuple[int, ...]] = {}

    def close(self, seq: SeqId) -> None:
        """Note the row's ids, then free it."""
        if not self.is_closed(seq):
            self._closed[seq] = self.ids(seq)
        super().close(seq)

    def is_closed(self, seq: SeqId) -> bool:
        """Whether the row was closed here."""
        return seq in self._closed

    def answer_to(self, seq: SeqId) -> tuple[int, ...]:
        """What a closed row of the request wrote."""
        return self._closed[seq][self._prompt_tokens :]

    @property
    def last_answer(self) -> tuple[int, ...]:
        """What the row of the request that was closed last wrote."""
        return self.answer_to(next(reversed(self._closed)))
