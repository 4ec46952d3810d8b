"""The line at the bottom: model, device, context, speed; less of it where there is less room."""

from collections.abc import Sequence

from textual.reactive import reactive
from textual.widgets import Static

from mlxcel_cli.plain_text import visible

SEPARATOR = " · "


class StatusLine(Static):
    """Parts from important to less; those that do not fit are left out."""

    parts: reactive[tuple[str, ...]] = reactive(())

    def __init__(self) -> None:
        super().__init__("", markup=False, id="status")

    def watch_parts(self) -> None:
        """Show the new parts."""
        text = fitting([visible(part) for part in self.parts], self.size.width - 2)
        # It has one line, whatever it says.
        self.update(text, layout=False)

    def on_resize(self) -> None:
        """Choose anew what fits."""
        self.watch_parts()


def fitting(parts: Sequence[str], columns: int) -> str:
    """As many parts as fit, the first one always, cut if it must be."""
    shown = ""
    for part in filter(None, parts):
        longer = f"{shown}{SEPARATOR}{part}" if shown else part
        if shown and len(longer) > columns:
            continue
        shown = longer
    return shown[: max(columns, 1)]
