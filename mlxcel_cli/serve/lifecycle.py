"""Runs ``mlxcel serve`` from the first socket to the last answer."""

import asyncio
import os
import resource
import signal
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from importlib.metadata import version

from aiohttp import web

from engine.models.progress import Progress
from mlxcel_cli.command_lines import ServeCommand
from mlxcel_cli.config import Settings, load_settings
from mlxcel_cli.engine_requests import model_request
from mlxcel_cli.exit_codes import ExitCode
from mlxcel_cli.output import Output, standard_output
from mlxcel_cli.progress_text import progress_text
from mlxcel_cli.sampling_options import parse_biases, sampling_params
from mlxcel_cli.serve.app import make_app
from mlxcel_cli.serve.connections import accept
from mlxcel_cli.serve.generation import SERVER_SAMPLING, Defaults
from mlxcel_cli.serve.listening import Listening, listen, tls_context
from mlxcel_cli.serve.logs import access_logger, log_to
from mlxcel_cli.serve.middleware import read_keys
from mlxcel_cli.serve.model_host import ModelHost
from mlxcel_cli.serve.served_model import ServedModel
from mlxcel_cli.serve.server import Server
from mlxcel_cli.serve.settings import ServeSettings, settings_report, settle
from mlxcel_cli.serve.worker import EngineWorker, ServerPhase
from mlxcel_cli.signals import Interrupted

SHUTDOWN_GRACE_S = 1.0
"""Seconds that handlers have to send the rest of responses that were ended."""
THREAD_END_S = 2.0
IDLE_POLL_S = 1.0
OPEN_FILES = 10240
"""What macOS grants at most; thousands of idle connections fit."""


def serve(command: ServeCommand) -> int:
    """Serve until a signal ends it; the exit status.

    Raises:
        EngineError, OSError: why it cannot start, for the program's entry point to report.
        Interrupted: a signal came before it was ready.
    """
    output = standard_output(os.environ)
    settings = load_settings(os.environ, command="serve", config=command.config)
    for warning in settings.warnings:
        output.note(f"mlxcel: {warning}")
    command = settings.fill(command)
    serving = settle(command.serve)
    keys = read_keys(serving.api_key, serving.api_key_file)
    lifecycle = _Lifecycle(command, settings, serving, output)
    return asyncio.run(lifecycle.run(keys))


class _Lifecycle:
    def __init__(
        self, command: ServeCommand, settings: Settings, serving: ServeSettings, output: Output
    ) -> None:
        self._output = output
        self._verbose = bool(command.verbose)
        self._defaults = _defaults(command)
        self._request = model_request(command.model, settings)
        if serving.max_kv_size is not None:
            most = min(serving.max_kv_size, self._request.context_tokens or serving.max_kv_size)
            self._request = replace(self._request, context_tokens=most)
        host = ModelHost(self._request, serving)
        self._worker = EngineWorker(host.load, on_progress=self._show_progress)
        self._server = Server(
            self._worker,
            serving,
            self._defaults,
            asked_name=self._request.name,
            version=version("mlxcel"),
        )
        self._stop = asyncio.Event()
        self._signum = signal.SIGTERM

    async def run(self, keys: tuple[bytes, ...]) -> int:
        settings = self._server.settings
        tls = tls_context(settings)
        listening = listen(settings)
        log_to(self._output.note)
        _allow_connections()
        runner = web.AppRunner(
            make_app(self._server, keys),
            handler_cancellation=True,
            shutdown_timeout=SHUTDOWN_GRACE_S,
        )
        logger = access_logger(self._output.note, self._server)
        self._install_signal_handlers()
        try:
            await runner.setup()
            sites = [await accept(runner, one, tls, logger) for one in listening.sockets]
            await self._load()
            self._introduce(listening)
            await self._serve_until_stopped()
            return await self._drain(sites)
        finally:
            await runner.cleanup()
            listening.close()
            self._server.close()
            self._worker.stop(THREAD_END_S)

    async def _load(self) -> None:
        """Wait for the model, or for a signal."""
        loading = asyncio.create_task(self._worker.start())
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait((loading, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not loading.done():
            loading.cancel()
            raise Interrupted(self._signum)
        loading.result()

    def _introduce(self, listening: Listening) -> None:
        model = self._worker.model
        assert model is not None
        self._output.clear_progress()
        names = self._server.names(model)
        for text in summary_lines(model, self._server.settings, names=names, verbose=self._verbose):
            self._output.note(f"mlxcel: {text}")
        self._output.note(f"mlxcel: ready: {listening.url}")

    async def _serve_until_stopped(self) -> None:
        """Wait for the signal; meanwhile an idle model may be freed."""
        reported_end = False
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), IDLE_POLL_S)
                return
            self._unload_when_idle()
            if self._worker.phase is ServerPhase.DEAD and not reported_end:
                reported_end = True
                self._output.note(
                    f"mlxcel: the engine has stopped ({self._worker.fault!r}); "
                    "requests are refused until the server is started again"
                )

    def _unload_when_idle(self) -> None:
        minutes = self._server.settings.idle_unload
        if not minutes or self._worker.phase is not ServerPhase.SERVING or self._worker.is_busy:
            return
        idle_s = asyncio.get_running_loop().time() - self._worker.used_s
        if idle_s >= minutes * 60:
            self._worker.unload()

    async def _drain(self, sites: Iterable[asyncio.Server]) -> int:
        """Take nothing new and let running answers end; the exit status."""
        for site in sites:
            site.close()
        loop = asyncio.get_running_loop()
        limit_s = self._server.settings.drain_timeout
        was_busy = self._worker.is_busy
        if was_busy:
            self._output.note(
                f"mlxcel: stopping; running answers have {limit_s:g} s to end "
                "(a second signal ends them at once)"
            )
        began_s = loop.time()
        await self._worker.drain(limit_s)
        if loop.time() - began_s < limit_s or not was_busy:
            return ExitCode.OK
        return 128 + self._signum

    # -- signals and progress

    def _install_signal_handlers(self) -> None:
        loop = asyncio.get_running_loop()
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup and shells without job control ignore SIGINT on purpose.
            if signal.getsignal(signum) is not signal.SIG_IGN:
                loop.add_signal_handler(signum, self._on_signal, signum)

    def _on_signal(self, signum: signal.Signals) -> None:
        if self._stop.is_set():
            os._exit(128 + signum)
        self._signum = signum
        self._stop.set()

    def _show_progress(self, progress: Progress) -> None:
        self._output.progress(progress_text(progress))


def _allow_connections() -> None:
    """Raise the limit of open files, which is 256 on macOS: each client takes one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _defaults(command: ServeCommand) -> Defaults:
    """What the command line says for requests that leave it open, checked."""
    checked = sampling_params(command.sampling, SERVER_SAMPLING)
    given = {
        one.name: getattr(checked, one.name)
        for one in fields(command.sampling)
        if one.name != "logit_bias" and getattr(command.sampling, one.name) is not None
    }
    return Defaults(given, parse_biases(command.sampling.logit_bias), command.max_tokens)


def summary_lines(
    model: ServedModel, settings: ServeSettings, *, names: Sequence[str], verbose: bool
) -> Iterator[str]:
    """Model, memory, slots, and the settings that are not the defaults; all with ``verbose``."""
    facts = model.facts
    yield from model.warnings
    form = facts.quantization or facts.dtype
    yield (
        f"{facts.name} ({facts.family}, {form}, {facts.weight_bytes / 2**20:.0f} MiB), "
        f"loaded in {model.load_s:.1f} s, served as {', '.join(names)}"
    )
    budget = "unbounded" if model.kv_budget_tokens is None else f"{model.kv_budget_tokens} tokens"
    yield (
        f"{settings.slots} slots, {model.context_tokens} tokens of context each, "
        f"{settings.max_queue_depth} may wait, KV {budget} "
        f"({facts.kv_bytes_per_token / 1024:.1f} KiB a token)"
    )
    if (drafts := settings.speculation) is not None:
        yield (
            f"drafts: {settings.draft_kind}, up to {drafts.max_draft} tokens, policy "
            f"{drafts.policy}, while at most {settings.prompt_lookup_max_batch} answers run"
        )
    if verbose:
        yield str(facts.path)
        yield from model.notes
    for name, row in settings_report(settings).items():
        if verbose or row["value"] not in (row["default"], "not set"):
            yield f"{name.replace('_', '-')}: {row['value']}"
    if not settings.api_key and settings.api_key_file is None and settings.socket_path is None:
        is_local = settings.host in ("127.0.0.1", "localhost", "::1")
        if not is_local:
            yield f"anyone who reaches {settings.host} may ask: --api-key guards the server"
