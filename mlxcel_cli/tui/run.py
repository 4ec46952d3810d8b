"""Runs the full-screen chat from its first screen to the restored terminal."""

import codecs
import gc
from collections.abc import Callable, MutableMapping
from functools import partial

from textual.drivers import linux_driver

from mlxcel_cli.chat.answerer import Answerer
from mlxcel_cli.chat.start import ChatStart
from mlxcel_cli.tui.app import ChatApp


def chat_on_screen(
    start: ChatStart,
    new_answerer: Callable[[ChatStart], Answerer],
    environ: MutableMapping[str, str],
    *,
    is_remote: bool,
) -> int:
    """Chat until the user leaves; the exit status.

    Raises:
        InvalidParams: there is no such theme, or a key of the options file is wrong.
    """
    # Textual takes an empty NO_COLOR for one; the convention says that it is not set.
    if environ.get("NO_COLOR") == "":
        del environ["NO_COLOR"]
    replace_broken_bytes()
    app = ChatApp(start, new_answerer, is_remote=is_remote)
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
    """Let the collector begin, with what comes after the first screen."""
    gc.freeze()
    gc.enable()
