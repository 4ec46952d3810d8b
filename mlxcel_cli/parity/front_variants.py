"""The variants of ``mlxcel parity`` that answer as its front ends do: ``generate``, and over HTTP.

Both run on the model that is loaded, through the code that serves a user.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields
from queue import SimpleQueue
from typing import Any

from aiohttp import ClientSession, web

from engine.errors import InternalFault
from engine.loading import OpenedModel
from engine.models.load import LoadedModel
from engine.params import SamplingParams
from engine.prefill import PrefillPacer
from engine.scheduler.scheduler import BatchScheduler
from engine.session import Session
from mlxcel_cli.answer_generator import AnswerGenerator, render_prompt
from mlxcel_cli.answers import AnswerDone, AnswerRequest
from mlxcel_cli.parity.comparison import ParityRequest, VariantUnfit
from mlxcel_cli.parity.engine_variants import RecordingEngine
from mlxcel_cli.prompt_input import PromptInput
from mlxcel_cli.serve.app import make_app
from mlxcel_cli.serve.generation import Defaults
from mlxcel_cli.serve.model_host import HostedModel
from mlxcel_cli.serve.served_model import ServedModel
from mlxcel_cli.serve.server import Server
from mlxcel_cli.serve.settings import settle
from mlxcel_cli.serve.worker import EngineWorker
from mlxcel_cli.serve_options import ServeOptions

LOOPBACK = "127.0.0.1"
ANSWER_PATH = "/v1/completions"


def generate_tokens(loaded: LoadedModel, request: ParityRequest) -> tuple[int, ...]:
    """The request as ``mlxcel generate --raw`` answers it, from its text on.

    Raises:
        VariantUnfit: the prompt's text does not give its tokens again.
        InternalFault: the text that was sent is not that of the tokens.
    """
    engine = RecordingEngine(loaded, request)
    raw = PromptInput(raw=loaded.tokenizer.decode(request.prompt_ids, skip_special=False))
    if loaded.tokenizer.encode_rendered(render_prompt(loaded.template, raw)) != request.prompt_ids:
        raise VariantUnfit("the prompt's text gives other tokens")
    asked = AnswerRequest(
        prompt=raw,
        sampling=request.case.sampling,
        biases=tuple(request.case.sampling.logit_bias.items()),
        max_tokens=request.max_tokens,
        context_tokens=request.context_tokens,
    )
    session = Session(engine, pacer=PrefillPacer(fixed_tokens=request.chunk_tokens))
    ready = OpenedModel(loaded, engine, session)
    *_, done = AnswerGenerator(ready).answer(asked)
    assert isinstance(done, AnswerDone)
    _require_text(loaded, request, engine.last_answer, done.text)
    return engine.last_answer


def http_tokens(loaded: LoadedModel, request: ParityRequest) -> tuple[int, ...]:
    """The request as a server on a port of this machine answers it.

    Raises:
        InternalFault: the server refused, or sent another text than that of the tokens.
    """
    engine = RecordingEngine(loaded, request)
    reply = _asked_over_http(_hosted(loaded, engine, request), _body(request))
    if "choices" not in reply:
        raise InternalFault(RuntimeError(f"the server refused: {reply}"))
    _require_text(loaded, request, engine.last_answer, reply["choices"][0]["text"])
    return engine.last_answer


def _require_text(
    loaded: LoadedModel, request: ParityRequest, ids: tuple[int, ...], sent: str
) -> None:
    if sent != loaded.tokenizer.decode(ids, context=request.prompt_ids):
        raise InternalFault(ValueError("the text that was sent is not that of the tokens"))


def _body(request: ParityRequest) -> dict[str, Any]:
    """The request in the fields of the completions endpoint."""
    sampling = request.case.sampling
    values = {one.name: getattr(sampling, one.name) for one in fields(SamplingParams)}
    return values | {
        "prompt": list(request.prompt_ids),
        "max_tokens": request.max_tokens,
        "logit_bias": {str(token): value for token, value in sampling.logit_bias.items()},
    }


def _hosted(loaded: LoadedModel, engine: RecordingEngine, request: ParityRequest) -> HostedModel:
    settings = settle(ServeOptions())
    model = ServedModel(
        facts=loaded.facts,
        tokenizer=loaded.tokenizer,
        template=loaded.template,
        generation=loaded.generation,
        context_tokens=engine.context_tokens,
        kv_budget_tokens=None,
        load_s=0.0,
    )
    pacer = PrefillPacer(fixed_tokens=request.chunk_tokens)
    scheduler = BatchScheduler(engine, settings.scheduler(None, pipelined=True), pacer=pacer)
    return HostedModel(model, scheduler, None)


def _asked_over_http(hosted: HostedModel, body: dict[str, Any]) -> Any:
    """What a server of ``hosted`` replies; the engine's work is done on this thread.

    Raises:
        InternalFault: the server broke.
    """
    here, replies = _ThisThread(), list[Any]()

    def serve() -> None:
        try:
            replies.append(asyncio.run(_exchange(hosted, body, here)))
        finally:
            here.close()

    server = threading.Thread(target=serve, name="mlxcel-parity-http", daemon=True)
    server.start()
    here.run()
    server.join()
    if not replies:
        raise InternalFault(RuntimeError("the server broke"))
    return replies[0]


async def _exchange(hosted: HostedModel, body: dict[str, Any], here: "_ThisThread") -> Any:
    """Start a server, ask it once and stop it."""
    worker = EngineWorker(lambda _: hosted, on_progress=lambda _: None, make_thread=lambda: here)
    server = Server(worker, settle(ServeOptions()), Defaults({}), asked_name=None, version="parity")
    runner = web.AppRunner(make_app(server, ()), access_log=None)
    await runner.setup()
    try:
        site = web.TCPSite(runner, LOOPBACK, 0)
        await site.start()
        await worker.start()
        url = f"http://{LOOPBACK}:{runner.addresses[0][1]}{ANSWER_PATH}"
        async with ClientSession(trust_env=False) as client, client.post(url, json=body) as reply:
            return json.loads(await reply.read())
    finally:
        worker.stop(0)
        await runner.cleanup()
        server.close()


class _ThisThread:
    """Stands for an engine thread: runs the one job it gets where `run` is called."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Callable[[], Iterator[None]] | None] = SimpleQueue()

    def stream(self, make: Callable[[Callable[[None], None]], Iterator[None]]) -> None:
        """Leave a job to be run."""
        self._jobs.put(lambda: make(lambda _: None))

    def close(self) -> None:
        """Let `run` end."""
        self._jobs.put(None)

    def join(self, timeout_s: float | None = None) -> bool:
        """Nothing is waited for: who waits is on another thread."""
        return timeout_s is not None

    def run(self) -> None:
        """Do the jobs until it is closed."""
        while (job := self._jobs.get()) is not None:
            for _ in job():
                pass
