"""`mlxcel serve` with a task in its event loop that reports how late the loop runs.

    python -m benchmarks.watched_server FILE serve -m MODEL [options of serve]

Every second it adds a JSON line to FILE: ``at`` (seconds since the epoch), ``lags_ms`` (how much
later than asked each 5 ms sleep ended), ``loop_s`` (CPU seconds of the loop's thread so far) and
``process_s`` (those of all threads).
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from aiohttp import web

from mlxcel_cli.app import main as mlxcel_main
from mlxcel_cli.serve import lifecycle
from mlxcel_cli.serve.app import make_app
from mlxcel_cli.serve.server import Server

SLEEP_S = 0.005
TASK: web.AppKey["asyncio.Task[None]"] = web.AppKey("watch_task")


def main() -> None:
    """Add the task to the application and run the command."""
    file = Path(sys.argv.pop(1))

    def watched_app(server: Server, keys: tuple[bytes, ...]) -> web.Application:
        app = make_app(server, keys)

        async def begin(app: web.Application) -> None:
            app[TASK] = asyncio.create_task(watch(file))

        async def stop(app: web.Application) -> None:
            app[TASK].cancel()

        app.on_startup.append(begin)
        app.on_shutdown.append(stop)
        return app

    lifecycle.make_app = watched_app  # type: ignore[attr-defined]
    mlxcel_main()


async def watch(file: Path) -> None:
    """Measure until cancelled."""
    loop = asyncio.get_running_loop()
    with file.open("a") as out:
        while True:
            lags = []
            end = loop.time() + 1
            while (before := loop.time()) < end:
                await asyncio.sleep(SLEEP_S)
                lags.append(round((loop.time() - before - SLEEP_S) * 1e3, 3))
            line = {
                "at": time.time(),
                "lags_ms": lags,
                "loop_s": time.thread_time(),
                "process_s": time.process_time(),
            }
            out.write(json.dumps(line) + "\n")
            out.flush()


if __name__ == "__main__":
    main()
