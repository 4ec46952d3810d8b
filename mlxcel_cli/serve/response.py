"""One response of any API: its state, driven by its rows' events, and the formatter it needs."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence

from engine.errors import EngineClosed
from engine.events import Cancelled, Delta, Done, Failed, PrefillProgress, Started
from mlxcel_cli.serve import json_text
from mlxcel_cli.serve.channel import ChannelEvent, Refused
from mlxcel_cli.serve.choices import Choice, Growth
from mlxcel_cli.serve.errors import ApiError, api_error
from mlxcel_cli.serve.progress import PromptProgress

PING = b": ping\n\n"


class Formatter(ABC):
    """Puts the parts of one response into an API's form. All it yields are events of a stream."""

    ping = PING
    """What keeps a silent stream alive."""

    def sse(self, event: object) -> bytes:
        """An event as bytes."""
        return b"data: " + json_text.encode(event) + b"\n\n"

    def opening(self, choice: Choice) -> Iterable[object]:
        """A choice has its slot."""
        del choice
        return ()

    def progress(self, choice: Choice, progress: PromptProgress) -> Iterable[object]:
        """More of a prompt was read."""
        del choice, progress
        return ()

    @abstractmethod
    def delta(self, choice: Choice, growth: Growth) -> Iterable[object]:
        """A choice grew."""

    @abstractmethod
    def closing(self, choice: Choice, growth: Growth) -> Iterable[object]:
        """A choice ended; ``growth`` is what was held back until now."""

    def end(self) -> Iterable[bytes]:
        """All choices have ended."""
        return ()

    @abstractmethod
    def error(self, error: ApiError) -> object:
        """The last event of a stream that fails."""

    @abstractmethod
    def whole(self) -> object:
        """The response at once."""


class ResponseStream:
    """A response as it grows.

    Args:
        choices: its rows' records.
        formatter: of the API that it is for; it knows the choices.
        has_timings: whether each delta carries the timings so far.
        has_progress: whether events report how much of the prompt was read.
    """

    def __init__(
        self,
        choices: Sequence[Choice],
        formatter: Formatter,
        *,
        has_timings: bool = False,
        has_progress: bool = False,
    ) -> None:
        self._by_id = {choice.row_id: choice for choice in choices}
        self._formatter = formatter
        self._has_timings = has_timings
        self._has_progress = has_progress
        self.ping = formatter.ping
        self.whole = formatter.whole
        self.failure: ApiError | None = None
        """What ended the response, if that was no good end."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come."""
        ended = all(choice.done for choice in self._by_id.values())
        return self.failure is not None or ended

    def lines(self, events: Iterable[ChannelEvent]) -> Iterator[bytes]:
        """Take events; the server-sent events they make. A failure ends the response."""
        for event in events:
            self.failure = _failure(event)
            if self.failure is not None:
                return
            yield from map(self._formatter.sse, self._grow(event))

    def end(self) -> Iterable[bytes]:
        """The last server-sent events."""
        if self.failure is not None:
            return (self._formatter.sse(self._formatter.error(self.failure)),)
        return self._formatter.end()

    def _grow(self, event: ChannelEvent) -> Iterator[object]:
        if isinstance(event, Refused):
            return
        choice, formatter = self._by_id[event.id], self._formatter
        match event:
            case Started():
                progress = choice.start(event)
                yield from formatter.opening(choice)
                yield from self._progress(choice, progress)
            case PrefillProgress():
                yield from self._progress(choice, choice.prefill.progress(event.done_tokens))
            case Delta():
                yield from self._progress(choice, choice.prefill.end())
                growth = choice.extend(event, has_timings=self._has_timings)
                yield from formatter.delta(choice, growth)
            case Done():
                yield from formatter.closing(choice, choice.end(event))
            case _:
                pass

    def _progress(self, choice: Choice, progress: PromptProgress | None) -> Iterable[object]:
        if progress is None or not self._has_progress:
            return ()
        return self._formatter.progress(choice, progress)


def _failure(event: ChannelEvent) -> ApiError | None:
    """How an event ends a response badly; None: it does not."""
    if isinstance(event, Refused | Failed):
        return api_error(event.error)
    if isinstance(event, Cancelled):
        return api_error(EngineClosed("the request was cancelled"))
    return None
