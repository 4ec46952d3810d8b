"""Runs the command line as a program, with a scripted backend, on pipes or a terminal."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

FAKE = Path(__file__).with_name("fake_program.py")
ROOT = FAKE.parents[2]
HELLO = {"answer": [["text", "Hello"], ["text", " world"]]}


def program_environ(script: object, **extra: str) -> dict[str, str]:
    environ = os.environ | {"FAKE_SCRIPT": json.dumps(script), "PYTHONPATH": str(ROOT)}
    for name in ("NO_COLOR", "COLUMNS", "LINES"):
        environ.pop(name, None)
    return environ | {"TERM": "xterm-256color", **extra}


class Program:
    """Starts ``mlxcel`` with a scripted backend."""

    def run(
        self, *arguments: str, script: object = HELLO, stdin: bytes | int = b"", **extra: str
    ) -> subprocess.CompletedProcess[bytes]:
        given = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
        return subprocess.run(
            [sys.executable, str(FAKE), *arguments],
            env=program_environ(script, **extra),
            capture_output=True,
            timeout=60,
            check=False,
            **given,
        )

    def start(self, *arguments: str, script: object = HELLO) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, str(FAKE), *arguments],
            env=program_environ(script),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def shell(self, command: str, script: object = HELLO) -> subprocess.CompletedProcess[bytes]:
        """Run a shell line in which ``mlxcel`` is the program."""
        line = f'mlxcel() {{ "{sys.executable}" "{FAKE}" "$@"; }}; {command}'
        return subprocess.run(
            ["bash", "-c", line],
            env=program_environ(script),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )


class Terminal:
    """Starts ``mlxcel`` with a scripted backend in a pseudo-terminal, ends what still runs."""

    def __init__(self) -> None:
        self._children: list[pexpect.spawn] = []

    def start(self, *arguments: str, script: object = HELLO, **extra: str) -> pexpect.spawn:
        child = pexpect.spawn(
            sys.executable,
            [str(FAKE), *arguments],
            env=program_environ(script, **extra),
            timeout=30,
            dimensions=(24, 100),
            encoding="utf-8",
        )
        self._children.append(child)
        return child

    def run(self, *arguments: str, script: object = HELLO, **extra: str) -> pexpect.spawn:
        child = self.start(*arguments, script=script, **extra)
        child.expect(pexpect.EOF)
        child.close()
        return child

    def end(self) -> None:
        for child in self._children:
            child.close(force=True)


@pytest.fixture
def program() -> Program:
    return Program()


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    terminal = Terminal()
    yield terminal
    terminal.end()
