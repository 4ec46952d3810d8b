"""Environments of chats that touch nothing of the user's, and terminals to run them in."""

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pexpect
import pyte
import pytest

from tests.tui.rigs import app_of, start_of

FAKE = Path(__file__).with_name("fake_chat.py")
ROOT = FAKE.parents[2]
WAIT_S = 40.0


@pytest.fixture
def environ(tmp_path):
    return {"MLXCEL_HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path / "config")}


class Terminal:
    """``mlxcel chat`` in a pseudo-terminal, and what its screen shows.

    Its backend is a scripted one, unless ``program`` names another.
    """

    def __init__(
        self,
        environ: dict[str, str],
        *arguments: str,
        size=(24, 80),
        program: Sequence[str] = (str(FAKE),),
        **extra: str,
    ):
        named = {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT)} | extra
        kept = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
        self.screen = pyte.Screen(size[1], size[0])
        self._stream = pyte.Stream(self.screen)
        self.raw = ""
        self.child = pexpect.spawn(
            sys.executable,
            [*program, "chat", *arguments],
            env=kept | environ | named,
            dimensions=size,
            encoding="utf-8",
            timeout=WAIT_S,
        )
        self.child.delaybeforesend = None

    def read(self, seconds: float = 0.1) -> bool:
        """Take what the program wrote; False at its end."""
        try:
            text = self.child.read_nonblocking(1 << 16, seconds)
        except pexpect.TIMEOUT:
            return True
        except pexpect.EOF:
            return False
        self.raw += text
        self._stream.feed(text)
        return True

    @property
    def shown(self) -> str:
        return "\n".join(self.screen.display)

    def until(self, text: str) -> None:
        """Read until the screen shows ``text``, in one line or over the end of one."""
        end = time.monotonic() + WAIT_S
        while text not in self.shown and text not in "".join(self.screen.display):
            assert time.monotonic() < end, f"{text!r} never came:\n{self.shown}"
            assert self.read(), f"it ended before {text!r}:\n{self.shown}"

    def until_end(self) -> int:
        """Read until the program ends; its exit status."""
        end = time.monotonic() + WAIT_S
        while self.read():
            assert time.monotonic() < end, f"it never ended:\n{self.shown}"
        self.child.close()
        status = self.child.exitstatus
        return status if status is not None else -self.child.signalstatus

    def after(self, text: str, key: str) -> None:
        """Press a key once the screen shows ``text``."""
        self.until(text)
        self.child.send(key)

    def resize(self, rows: int, columns: int) -> None:
        self.screen.resize(rows, columns)
        self.child.setwinsize(rows, columns)


@pytest.fixture
def terminal(environ) -> Iterator:
    started: list[Terminal] = []

    def start(*arguments: str, **values) -> Terminal:
        started.append(Terminal(environ, *arguments, **values))
        return started[-1]

    yield start
    for one in started:
        one.child.close(force=True)


@pytest.fixture
def starter(terminal, environ, starter_folder) -> Callable:
    """Runs the real program with the starter model in a terminal, up to its first screen."""
    home = Path(environ["MLXCEL_HOME"])
    home.mkdir(exist_ok=True)
    # What is compiled once for a machine need not be compiled for each test.
    blas = starter_folder.parent.parent / "blas"
    if blas.exists():
        (home / "blas").symlink_to(blas)

    def start(*arguments: str, **values):
        program = ("-m", "mlxcel_cli")
        started = terminal(*arguments, str(starter_folder), program=program, **values)
        # What is typed before there is a screen is the shell's.
        started.until("F1 help")
        return started

    return start


@pytest.fixture
def chat(environ):
    """Runs ``steps(pilot)`` on an app with a backend; gives the app back."""

    def run(backend, steps, *words, size=(80, 24), **options):
        async def main():
            app = app_of(start_of(environ, *words, **options), backend)
            async with app.run_test(size=size) as pilot:
                await steps(pilot)
            return app

        return asyncio.run(main())

    return run
