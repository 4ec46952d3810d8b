"""What every handler of a server shares: the worker, the settings in force, the names served."""

import asyncio
import functools
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TypeVar

from aiohttp import web

from mlxcel_cli.serve.errors import ApiError
from mlxcel_cli.serve.generation import Defaults
from mlxcel_cli.serve.metrics import MetricsPage
from mlxcel_cli.serve.served_model import DEFAULT_NAME, ServedModel
from mlxcel_cli.serve.settings import ServeSettings
from mlxcel_cli.serve.worker import EngineWorker

T = TypeVar("T")

TEXT_THREADS = 2
"""Threads that render templates and encode prompts, so that a long one delays no stream."""
LONG_BODY_BYTES = 128 * 1024
"""Bodies from this size on have a thread of their own, so that they delay no short prompt."""


class Server:
    """The state of one running server.

    Args:
        worker: the way to the engine.
        settings: in force; changeable ones may be replaced.
        defaults: what options say for requests that leave it open.
        asked_name: the model's name on the command line, which is served too.
        version: ours.
    """

    def __init__(
        self,
        worker: EngineWorker,
        settings: ServeSettings,
        defaults: Defaults,
        *,
        asked_name: str | None,
        version: str,
    ) -> None:
        self.worker = worker
        self.settings = settings
        self.defaults = defaults
        self.version = version
        self.metrics = MetricsPage(worker)
        self.started = int(time.time())
        self._asked_name = asked_name
        self._texts = ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="mlxcel-text")
        self._long_texts = ThreadPoolExecutor(1, thread_name_prefix="mlxcel-long-text")

    @property
    def fingerprint(self) -> str:
        """What made an answer, for ``system_fingerprint``."""
        return f"mlxcel-{self.version}"

    def names(self, model: ServedModel) -> tuple[str, ...]:
        """Every name the model is served by; the first is the one it is listed under."""
        asked = () if self._asked_name is None else (self._asked_name,)
        return tuple(dict.fromkeys((*self.settings.alias, model.facts.name, *asked, DEFAULT_NAME)))

    def require_name(self, name: str, model: ServedModel) -> str:
        """The listed name of the model that a request names.

        Raises:
            ApiError: this server does not serve it; nothing is fetched.
        """
        names = self.names(model)
        if name not in names:
            raise ApiError(
                HTTPStatus.NOT_FOUND,
                f"The model {name!r} is not served here; this server has {', '.join(names)}.",
                code="model_not_found",
                param="model",
            )
        return names[0]

    def model_for_generation(self) -> ServedModel:
        """The model, when a request would find a place: checked before any work is done for it.

        Raises:
            ApiError: it loads.
            EngineClosed: the server ends, or the engine is broken.
            QueueFull: too many wait.
        """
        model = self.worker.ready_model()
        self.worker.refuse_when_full(self.settings.slots, self.settings.max_queue_depth)
        return model

    async def text_work(self, job: Callable[[], T], body_bytes: int) -> T:
        """``job()`` on a thread for text, away from the event loop.

        Args:
            job: what to do.
            body_bytes: length of the body it is done for.
        """
        loop = asyncio.get_running_loop()
        threads = self._texts if body_bytes < LONG_BODY_BYTES else self._long_texts
        return await loop.run_in_executor(threads, functools.partial(job))

    def close(self) -> None:
        """Let the text threads go."""
        for threads in (self._texts, self._long_texts):
            threads.shutdown(wait=False, cancel_futures=True)


SERVER = web.AppKey("server", Server)
REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id", str)
OWNER: web.RequestKey[str] = web.RequestKey("owner", str)
"""A digest of the request's API key, where the server has keys."""


def new_id(prefix: str) -> str:
    """A response's id."""
    return f"{prefix}-{secrets.token_hex(16)}"
