"""Runs the full-screen chat from its first screen to the restored terminal."""

import codecs
import gc
from collections.abc import Callable, MutableMapping
from functools import partial

from textual import screen
from textual.drivers import linux_driver

from mlxcel_cli.chat.answerer import Answerer
from mlxcel_cli.chat.start import ChatStart
from mlxcel_cli.tui.app import ChatApp

COLLECT_AFTER = (5_000, 10, 20)
"""For `gc.set_threshold`: new objects until a collection of the youngest generation, and how many
collections of a generation come before one of the next."""

DRAWS_PER_S = 120
"""How often the screen can be drawn: a key waits for the next frame. Textual's default is 60."""


def chat_on_screen(
    start: ChatStart,
    new_answerer: Callable[[ChatStart], Answerer],
    environ: MutableMapping[str, str],
) -> int:
    """Chat until the user leaves; the exit status.

    Raises:
        InvalidParams: there is no such theme, or a key of the options file is wrong.
    """
    # Textual takes an empty NO_COLOR for one; the convention says that it is not set.
    if environ.get("NO_COLOR") == "":
        del environ["NO_COLOR"]
    replace_broken_bytes()
    if "TEXTUAL_FPS" not in environ:
        vars(screen)["UPDATE_PERIOD"] = 1 / DRAWS_PER_S
    app = ChatApp(start, new_answerer)
    app.when_drawn = collect_from_here
    # The collector would go through all that was imported while the first screen is drawn, and
    # again while a key waits: 0.03 to 0.1 s each, and it finds nothing there.
    gc.disable()
    try:
        app.run()
    finally:
        gc.enable()
    return app.return_code or 0


def replace_broken_bytes() -> None:
    """Let Textual replace what is typed or pasted and is no UTF-8: one such byte ended the chat.

    Textual (8.2) decodes strictly and has no setting for it.
    """

    def decoder(name: str) -> Callable[[], codecs.IncrementalDecoder]:
        return partial(codecs.getincrementaldecoder(name), errors="replace")

    vars(linux_driver)["getincrementaldecoder"] = decoder


def collect_from_here() -> None:
    """Start the collector, for objects made after the first screen, and let it run seldom.

    As Python sets it, it goes through all that is shown each second or so while an answer
    streams: 0.02 to 0.05 s, in which a key waits.
    """
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    gc.enable()
