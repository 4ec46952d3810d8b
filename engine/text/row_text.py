"""The text of one row: its tokens go in, text that is safe to show comes out."""

from collections.abc import Sequence

from engine.text.decoder import StreamDecoder
from engine.text.stops import StopMatcher


class RowText:
    """A row's decoder and stop strings.

    ``push`` every token that is text (an end token is not), then ``flush`` at an end that is
    no stop string. The joined ``take`` results are ``text``.
    """

    __slots__ = ("_decoder", "_matcher", "_released", "_taken")

    def __init__(self, decoder: StreamDecoder, stops: Sequence[str] = ()) -> None:
        self._decoder = decoder
        self._matcher = StopMatcher(stops)
        self._released: list[str] = []
        self._taken = 0

    def push(self, token: int) -> bool:
        """Take the newest token; True when a stop string is complete."""
        text = self._matcher.push(self._decoder.push(token))
        if text:
            self._released.append(text)
        return self._matcher.matched is not None

    def take(self) -> str:
        """The text released since the last call."""
        text = "".join(self._released[self._taken :])
        self._taken = len(self._released)
        return text

    def flush(self) -> None:
        """Release what is held back: the answer has ended. A second call does nothing.

        The decoder's tail goes through the matcher too, so a stop string that only the end
        completes is still found.
        """
        for text in (self._matcher.push(self._decoder.finish()), self._matcher.flush()):
            if text:
                self._released.append(text)

    @property
    def stop_match(self) -> str | None:
        """The stop string that ended the text, None so far."""
        return self._matcher.matched

    @property
    def text(self) -> str:
        """Everything released so far."""
        return "".join(self._released)
