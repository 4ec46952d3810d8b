"""A chat on a screen without a terminal, with a backend that answers by a script."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

from textual.pilot import Pilot

from engine.models.progress import Progress
from engine.outcome import Timings, Usage
from engine.text.answer_text import TextDelta
from mlxcel_cli.answers import AnswerDone, AnswerEvent, AnswerRequest, ModelReport
from mlxcel_cli.chat.answerer import Answerer
from mlxcel_cli.chat.messages import Chat
from mlxcel_cli.chat.start import ChatCommand, ChatStart, prepare
from mlxcel_cli.chat.store import ChatStore
from mlxcel_cli.chat_options import ChatOptions
from mlxcel_cli.lookup_options import LookupOptions
from mlxcel_cli.options import LengthOptions, ModelOptions
from mlxcel_cli.sampling_options import SamplingOptions
from mlxcel_cli.tui.app import ChatApp

TIMINGS = Timings(prompt_n=12, prompt_s=0.5, predicted_n=21, predicted_s=1.0, ttft_s=0.25)
REPORT = ModelReport("tiny-chat", Path("tiny"), 0.5, has_template=True, device="cpu",
                     context_tokens=4096)  # fmt: skip
WAIT_S = 20.0


def done(text: str, **values) -> AnswerDone:
    values = {"finish": "eos", "seed": 7, "usage": Usage(34, 21), "timings": TIMINGS} | values
    return AnswerDone(text=text, **values)


class Gate:
    """A place in a script where the backend waits until the test opens it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def wait(self) -> None:
        self.reached.set()
        assert self.opened.wait(WAIT_S)


class ScriptedBackend:
    """Plays ``answers`` one after the other; a script has events, errors and gates."""

    def __init__(self, *answers, load=()) -> None:
        self.answers = list(answers)
        self.load_script = list(load)
        self.report = REPORT
        self.requests: list[AnswerRequest] = []
        self.loads: list[str | None] = []

    def load(self, request, report) -> ModelReport:
        self.loads.append(request.name)
        for step in self.load_script:
            if isinstance(step, Progress):
                report(step)
            else:
                play(step)
        return self.report

    def answer(self, request: AnswerRequest) -> Iterator[AnswerEvent]:
        self.requests.append(request)
        script = self.answers.pop(0) if self.answers else "ok"
        if isinstance(script, str):
            script = [TextDelta(script, tokens=21), done(script)]
        for step in script:
            if isinstance(step, Gate | Exception):
                play(step)
            else:
                yield step

    def unload(self) -> None:
        pass


def play(step) -> None:
    if isinstance(step, Gate):
        step.wait()
    else:
        raise step


def start_of(environ: dict[str, str], *words: str, **options) -> ChatStart:
    """What the command line ``chat *words`` with these options settles."""
    command = ChatCommand(
        words=words,
        model=ModelOptions(),
        length=LengthOptions(),
        sampling=SamplingOptions(),
        lookup=LookupOptions(),
        chat=ChatOptions(**options),
    )
    start = prepare(command, environ)
    start.session.clock = lambda: 0.0
    return start


def app_of(start: ChatStart, backend: ScriptedBackend) -> ChatApp:
    app = ChatApp(start, lambda _: Answerer(backend))
    app.animation_level = "none"
    return app


async def until(pilot: Pilot, holds: Callable[[], object]) -> None:
    """Let the app run until something holds."""
    for _ in range(int(WAIT_S / 0.02)):
        if holds():
            await pilot.pause()
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never came true")


async def ready(pilot: Pilot) -> None:
    """Until the model is loaded."""
    await until(pilot, lambda: pilot.app.session.model is not None)


async def settled(pilot: Pilot) -> None:
    """Until no answer is written and the screen is drawn."""
    await until(pilot, lambda: pilot.app.session.model and not pilot.app.conversation.is_generating)
    await pilot.pause(0.05)


async def say(pilot: Pilot, text: str) -> None:
    """Type and send a message."""
    pilot.app.prompt.fill(text)
    await pilot.press("enter")


async def ask(pilot: Pilot, text: str) -> None:
    """Send a message and wait for its answer."""
    asked = len(pilot.app.session.chat.messages)
    await say(pilot, text)
    await until(pilot, lambda: len(pilot.app.session.chat.messages) > asked + 1)
    await settled(pilot)


def screen_text(app: ChatApp) -> str:
    """The screen as lines of text, without colours."""
    tree = ElementTree.fromstring(app.export_screenshot(simplify=True))
    rows: dict[float, list[tuple[float, str]]] = {}
    for node in tree.iter("{http://www.w3.org/2000/svg}text"):
        if "x" in node.attrib and "clip-path" in node.attrib:
            place = rows.setdefault(float(node.attrib["y"]), [])
            place.append((float(node.attrib["x"]), (node.text or "").replace("\xa0", " ")))
    return (
        "\n".join(
            "".join(text for _, text in sorted(runs)).rstrip() for _, runs in sorted(rows.items())
        )
        + "\n"
    )


def screen_lines(app: ChatApp) -> str:
    """The screen as its compositor holds it: a line each, wide characters once."""
    strips = app.screen._compositor.render_strips()
    return "\n".join(strip.text.rstrip() for strip in strips) + "\n"


def texts(app) -> list[str]:
    return [message.text for message in app.session.chat.messages]


def notices(app) -> list[str]:
    return [notice.message for notice in app._notifications]


def chat_in_file(app: ChatApp) -> Chat:
    """The chat as its file has it."""
    assert app.command_context.store is not None
    return ChatStore(app.command_context.store.path).load(app.session.chat.id)
