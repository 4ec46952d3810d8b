"""How quickly the chat's screen comes, and how quickly it shows a key while an answer streams.

Runs ``mlxcel chat`` with a scripted backend in a pseudo-terminal, on a saved chat of 300 turns:
``python -m benchmarks.tui``. A key's time ends when the bytes that show it have come. A terminal
emulator works out afterwards which ones those were, so that it takes no part of the cores.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pexpect
import pyte

from mlxcel_cli.chat.messages import ASSISTANT, Chat, ChatMessage
from mlxcel_cli.chat.store import ChatStore

ROOT = Path(__file__).parents[1]
PROGRAM = ROOT / "tests" / "tui" / "fake_chat.py"
TURNS = 300
KEYS = 80
"""As many as fit into one line of the prompt: each time, all that was typed is looked for."""
PAUSE_S = 0.15
"""Between two keys: a fast typist."""
CHARACTERS = "zqxjkvbgpy"
"""What is typed, the first one nowhere on the screen before."""
WAIT_S = 30.0
ANSWER = "Answer **{0}**\n\n```python\nx = {0}\n```\n\n- a\n- b\n"


class Screen:
    """The program in a terminal of 100 by 40."""

    def __init__(self, home: str, *arguments: str) -> None:
        environ = os.environ | {
            "MLXCEL_HOME": home,
            "PYTHONPATH": str(ROOT),
            "TERM": "xterm-256color",
            "FAKE_PAUSE": "0.03",
            "FAKE_ANSWER": "some words and more of them\n\n" * 400,
        }
        self._screen = pyte.Screen(100, 40)
        self._stream = pyte.Stream(self._screen)
        self.child = pexpect.spawn(
            sys.executable,
            [str(PROGRAM), "chat", *arguments],
            env=environ,
            dimensions=(40, 100),
            encoding="utf-8",
        )
        self.child.delaybeforesend = None

    def seconds_until(self, holds: Callable[[str], bool]) -> float:
        """How long it takes until the screen's text is such."""
        begun = time.perf_counter()
        while not holds("\n".join(self._screen.display)):
            if time.perf_counter() - begun > WAIT_S:
                raise TimeoutError("\n".join(self._screen.display))
            try:
                self._stream.feed(self.child.read_nonblocking(1 << 16, 0.005))
            except pexpect.TIMEOUT:
                continue
        return time.perf_counter() - begun

    def chunks_for(self, seconds: float) -> list[tuple[float, str]]:
        """What is written within a time, each part with the moment it came."""
        until, chunks = time.perf_counter() + seconds, []
        while (left := until - time.perf_counter()) > 0:
            try:
                chunk = self.child.read_nonblocking(1 << 16, left)
            except pexpect.TIMEOUT:
                break
            chunks.append((time.perf_counter(), chunk))
        return chunks

    def after(self, chunk: str) -> str:
        """The screen's text once it has read the bytes."""
        self._stream.feed(chunk)
        return "\n".join(self._screen.display)


def save_chat(home: str) -> None:
    """Save a chat of many turns under ``home``."""
    store = ChatStore(Path(home) / "data" / "chats.sqlite3")
    chat = Chat(store.new_id())
    for turn in range(TURNS):
        message = ChatMessage(ASSISTANT, ANSWER.format(turn), finish="eos")
        chat = chat.asked(f"question {turn}").answered(message)
    store.save(chat)


def key_times(screen: Screen) -> list[float]:
    """Seconds from key to screen while an answer streams, sorted."""
    screen.child.send("go\r")
    screen.seconds_until(lambda text: "some words" in text)
    sent: list[tuple[float, str]] = []
    chunks: list[tuple[float, str]] = []
    typed = ""
    for number in range(KEYS):
        typed += CHARACTERS[number % len(CHARACTERS)]
        sent.append((time.perf_counter(), typed))
        screen.child.send(typed[-1])
        chunks += screen.chunks_for(PAUSE_S)
    chunks += screen.chunks_for(WAIT_S / 10)
    times: list[float] = []
    for came, chunk in chunks:
        text = screen.after(chunk)
        while len(times) < KEYS and sent[len(times)][1] in text:
            times.append(came - sent[len(times)][0])
    if len(times) < KEYS:
        raise TimeoutError(f"only {len(times)} of {KEYS} keys were shown")
    return sorted(times)


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as home:
        first = Screen(home, "--no-save")
        print(f"first screen: {first.seconds_until(lambda text: 'sends' in text):.2f} s")
        first.child.close(force=True)
        save_chat(home)
        screen = Screen(home, "--continue")
        resumed = screen.seconds_until(lambda text: f"question {TURNS - 1}" in text)
        print(f"chat of {TURNS} turns shown: {resumed:.2f} s")
        times = key_times(screen)
        screen.child.close(force=True)
    p50, p95 = times[len(times) // 2], times[int(len(times) * 0.95)]
    print(f"key to screen: p50 {p50 * 1000:.0f} ms, p95 {p95 * 1000:.0f} ms")


if __name__ == "__main__":
    main()
