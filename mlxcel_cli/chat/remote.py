"""Answers chats with an OpenAI-shaped server: llama.cpp's, mlx-lm's, ours.

One HTTP connection an answer, read as server-sent events. Another thread may interrupt it, which
closes the connection; servers take that as the end of the request.
"""

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from engine.errors import InvalidParams
from engine.models.progress import Progress
from engine.outcome import Timings, Usage
from engine.text.answer_text import AnswerText, TextDelta
from mlxcel_cli.answers import AnswerDone, AnswerEvent, AnswerRequest, ModelReport, ModelRequest
from mlxcel_cli.plain_text import encodable

CONNECT_S = 10.0
ANSWER_S = 600.0
"""How long a server may be silent, as it is while it prefills."""

FINISHES = {"stop": "eos", "length": "length"}
"""The API's finish reasons in the engine's words."""

_SENT = (
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "seed",
)  # fmt: skip


class ServerFailed(ConnectionError):
    """A server cannot be reached, or answers with an error."""


class RemoteBackend:
    """A model behind ``/v1/chat/completions``.

    Args:
        url: the API's base, with or without ``/v1``.
        key: sent as a bearer token, if there is one.
        clock: seconds, monotonic.
    """

    def __init__(
        self, url: str, key: str | None = None, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            self._host, self._port = parts.hostname or "", parts.port
        except ValueError as error:
            raise InvalidParams("--url", f"{url!r} is no address: {error}") from error
        if parts.scheme not in ("http", "https") or not self._host:
            raise InvalidParams("--url", f"must be like http://localhost:8080/v1, not {url!r}")
        self._secure = parts.scheme == "https"
        path = parts.path.rstrip("/")
        self._base = path if path.endswith("/v1") else f"{path}/v1"
        self._name = parts.netloc.rpartition("@")[2]
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._clock = clock
        self._model = ""
        self._socket: socket.socket | None = None

    def load(self, request: ModelRequest, report: Callable[[Progress], None]) -> ModelReport:
        """Ask the server which models it has, and take the one named, else its first.

        Raises:
            ServerFailed: it cannot be reached or refuses.
            InvalidParams: it has no such model.
        """
        report(Progress(f"connecting to {self._name}", 0, None))
        listed = self._list()
        names = [str(one["id"]) for one in listed]
        if request.name is not None and names and request.name not in names:
            raise InvalidParams("MODEL", f"{self._name} has {', '.join(names)}")
        self._model = request.name or (names[0] if names else "default")
        return ModelReport(
            name=self._model,
            path=Path(self._name),
            load_s=0.0,
            has_template=True,
            device=self._name,
            context_tokens=_context_of(listed, self._model),
        )

    def answer(self, request: AnswerRequest) -> Iterator[AnswerEvent]:
        """Stream one answer; closing the iterator closes the connection.

        Raises:
            ServerFailed: the server refuses, fails, or goes away.
        """
        started = self._clock()
        body = self._body(request)
        try:
            with self._asked("POST", "/chat/completions", body, ANSWER_S) as response:
                yield from _ResponseReader(self._clock, started, request.sampling.seed).events(
                    response
                )
        except ServerFailed:
            raise
        except (OSError, HTTPException) as error:
            raise ServerFailed(f"{self._name} broke off: {error}") from error

    def unload(self) -> None:
        """Nothing is loaded here."""

    def interrupt(self) -> None:
        """Wake a read that waits for the server; called from another thread."""
        waiting = self._socket
        if waiting is not None:
            try:
                waiting.shutdown(socket.SHUT_RDWR)
            except OSError:
                # It has ended by itself.
                return

    def _list(self) -> list[Mapping[str, Any]]:
        try:
            with self._asked("GET", "/models", None, CONNECT_S) as response:
                answer = json.loads(response.read())
            return [one for one in answer["data"] if isinstance(one, dict) and "id" in one]
        except ServerFailed:
            raise
        except (OSError, HTTPException) as error:
            raise ServerFailed(f"{self._name} cannot be reached: {error}") from error
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ServerFailed(f"{self._name} has no OpenAI-shaped API at {self._base}") from error

    @contextmanager
    def _asked(
        self, method: str, path: str, body: object, timeout_s: float
    ) -> Iterator[HTTPResponse]:
        """One request's answer, on a connection that ends with the block."""
        content = None if body is None else json.dumps(body).encode()
        kind = HTTPSConnection if self._secure else HTTPConnection
        with closing(kind(self._host, self._port, timeout=CONNECT_S)) as connection:
            connection.connect()
            connection.sock.settimeout(timeout_s)
            self._socket = connection.sock
            try:
                connection.request(method, self._base + path, content, self._headers)
                # A response without a length keeps the socket open after its connection has closed.
                with connection.getresponse() as response:
                    if response.status >= 400:
                        raise ServerFailed(f"{self._name}: {_refusal(response)}")
                    yield response
            finally:
                self._socket = None

    def _body(self, request: AnswerRequest) -> dict[str, object]:
        body: dict[str, object] = {
            "model": self._model,
            "messages": list(request.prompt.messages or ()),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        for name in _SENT:
            value = getattr(request.sampling, name)
            # Servers differ in what they know: what is off is not sent.
            if value not in (None, 0, 0.0) or name == "temperature":
                body[name] = value
        if request.max_tokens is not None:
            body["max_tokens"] = request.max_tokens
        if request.stops:
            body["stop"] = list(request.stops)
        return body


@contextmanager
def _shape_checked() -> Iterator[None]:
    """Report what is not of the expected shape: a server may send anything."""
    try:
        yield
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise ServerFailed("the server's answer has not the shape of OpenAI's") from error


class _ResponseReader:
    """One streamed answer: its events, and what its end needs."""

    def __init__(self, clock: Callable[[], float], started: float, seed: int | None) -> None:
        self._clock = clock
        self._started = started
        self._seed = seed
        self._text = AnswerText()
        self._deltas = 0
        self._first: float | None = None
        self._last = started
        self._finish: str | None = None
        self._usage: Mapping[str, Any] = {}
        self._timings: Mapping[str, Any] = {}

    def events(self, response: HTTPResponse) -> Iterator[AnswerEvent]:
        """Text as it comes, then how the answer ended."""
        ended = False
        for line in response:
            field, _, value = line.decode("utf-8", "replace").partition(":")
            if field != "data":
                continue
            if value.strip() == "[DONE]":
                ended = True
                break
            with _shape_checked():
                deltas = tuple(self._deltas_of(value))
            yield from deltas
        if not ended and self._finish is None:
            raise ServerFailed("the server's answer broke off")
        with _shape_checked():
            done = self._done()
        yield done

    def _deltas_of(self, value: str) -> Iterator[TextDelta]:
        try:
            chunk = json.loads(value)
        except (ValueError, RecursionError):
            return
        if error := chunk.get("error"):
            raise ServerFailed(
                str(error.get("message", error) if isinstance(error, dict) else error)
            )
        self._usage = chunk.get("usage") or self._usage
        self._timings = chunk.get("timings") or self._timings
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            reasoning = delta.get("reasoning_content") or delta.get("reasoning")
            for text, is_reasoning in ((reasoning, True), (delta.get("content"), False)):
                if text:
                    text = encodable(text)
                    yield self._noted(text, is_reasoning=is_reasoning)
            self._finish = str(choice.get("finish_reason") or "") or self._finish

    def _noted(self, text: str, *, is_reasoning: bool) -> TextDelta:
        self._last = self._clock()
        if self._first is None:
            self._first = self._last
        self._deltas += 1
        return self._text.add(TextDelta(text, is_reasoning, self._deltas))

    def _done(self) -> AnswerDone:
        first = self._started if self._first is None else self._first
        written = int(self._usage.get("completion_tokens") or self._deltas)
        prompt = int(self._usage.get("prompt_tokens") or 0)
        details = self._usage.get("prompt_tokens_details") or {}
        cached = int(details.get("cached_tokens") or 0)
        finish = self._finish or "stop"
        return AnswerDone(
            text=self._text.text,
            finish=FINISHES.get(finish, finish),
            seed=-1 if self._seed is None else self._seed,
            usage=Usage(prompt, written, cached),
            timings=Timings(
                prompt_n=prompt - cached,
                prompt_s=first - self._started,
                predicted_n=written,
                predicted_s=self._last - first,
                ttft_s=first - self._started,
                cache_n=cached,
                draft_n=int(self._timings.get("draft_n") or 0),
                draft_n_accepted=int(self._timings.get("draft_n_accepted") or 0),
            ),
            reasoned=self._text.reasoned,
        )


def _refusal(response: HTTPResponse) -> str:
    """A server's error message, in one line."""
    text = response.read().decode("utf-8", "replace")
    try:
        error = json.loads(text)["error"]
        said = error["message"] if isinstance(error, dict) else error
    except (ValueError, KeyError, TypeError, RecursionError):
        said = text.strip().splitlines()[0] if text.strip() else response.reason
    return f"{said} (HTTP {response.status})"


def _context_of(listed: list[Mapping[str, Any]], model: str) -> int | None:
    """The context a server lists for a model, in the places where servers list it."""
    for one in listed:
        if one.get("id") == model:
            meta = one.get("meta")
            trained = meta.get("n_ctx_train") if isinstance(meta, dict) else None
            found = one.get("max_model_len") or one.get("context_length") or trained
            return found if isinstance(found, int) and found > 0 else None
    return None
