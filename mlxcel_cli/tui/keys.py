"""Every key of the chat and what it does; a key is changed by its action's id in ``[keys]``."""

from collections.abc import Iterable, Mapping

from textual.binding import Binding

from engine.errors import InvalidParams

CHAT_KEYS = (
    Binding("ctrl+q", "leave", "Leave", id="leave", priority=True),
    Binding("f1", "help", "Keys and commands", id="help"),
    Binding("ctrl+p", "command_palette", "All actions", id="palette"),
    Binding("escape", "stop", "Stop the answer", id="stop"),
    Binding("ctrl+c", "copy_or_stop", "Copy the selection, else stop the answer", id="copy"),
    Binding("ctrl+n", "new_chat", "New chat", id="new-chat"),
    Binding("ctrl+o", "chats", "Saved chats", id="chats"),
    Binding("ctrl+r", "regenerate", "Answer again", id="regenerate"),
    Binding("c,ctrl+g", "continue", "Continue an answer that was cut off", id="continue"),
    Binding("ctrl+t", "fold", "Open or close the thinking", id="thinking"),
    Binding("f3", "unfold", "Open or close the newest long message", id="message"),
    Binding("f2", "details", "Counts and speed", id="details"),
    Binding("ctrl+b", "earlier", "Show earlier turns", id="earlier"),
    Binding("pageup", "page_up", "Scroll up", id="page-up"),
    Binding("pagedown", "page_down", "Scroll down", id="page-down"),
    Binding("ctrl+end", "follow", "Follow the answer again", id="follow"),
)
"""Keys that work wherever the focus is."""

PROMPT_KEYS = (
    Binding("enter", "send", "Send", id="send", priority=True),
    Binding("shift+enter,ctrl+j", "new_line", "New line", id="new-line", priority=True),
    Binding("tab", "complete", "Complete a /command or @path", id="complete", priority=True),
    Binding("up", "up_or_edit", "In an empty prompt: edit the last turn", id="edit-last"),
    Binding("end", "end_or_follow", "End of the line, then follow the answer", id="end"),
    Binding("ctrl+c", "app.copy_or_stop", show=False, id="prompt.copy"),
    Binding("pageup", "app.page_up", show=False, id="prompt.page-up"),
    Binding("pagedown", "app.page_down", show=False, id="prompt.page-down"),
)
"""Keys of the prompt."""

DIALOG_KEYS = (
    Binding("escape", "dismiss(None)", "Close a dialog or page", id="dialog-close"),
    Binding("down", "move(1)", "In a list: the next", id="dialog-next"),
    Binding("up", "move(-1)", "In a list: the one before", id="dialog-previous"),
    Binding("ctrl+d", "delete", "In saved chats: delete one", id="dialog-delete", priority=True),
)
"""Keys of dialogs; while one is open, the chat's own keys are off."""

ALL_KEYS = (*PROMPT_KEYS, *CHAT_KEYS, *DIALOG_KEYS)
"""All of them, in the order in which help shows them."""

_TWINS = {"copy": "prompt.copy", "page-up": "prompt.page-up", "page-down": "prompt.page-down"}
"""Actions that the prompt binds too, since a text area has keys of its own."""


def keymap(chosen: Mapping[str, str]) -> dict[str, str]:
    """Binding id to keys, from the options file's ``[keys]`` table.

    Raises:
        InvalidParams: there is no such action, or two actions have one key.
    """
    groups = [_defaults((*CHAT_KEYS, *PROMPT_KEYS)), _defaults(DIALOG_KEYS)]
    known = sorted(name for group in groups for name in group)
    for name in chosen:
        if name not in known:
            raise InvalidParams(f"keys.{name}", f"is no action; actions are: {', '.join(known)}")
    for group in groups:
        _check_clashes(group, {name: keys for name, keys in chosen.items() if name in group})
    twins = {_TWINS[name]: keys for name, keys in chosen.items() if name in _TWINS}
    return {**chosen, **twins}


def _defaults(bindings: Iterable[Binding]) -> dict[str, str]:
    return {one.id: one.key for one in bindings if one.id and "." not in one.id}


def _check_clashes(known: Mapping[str, str], chosen: Mapping[str, str]) -> None:
    taken: dict[str, str] = {}
    for name, keys in {**known, **chosen}.items():
        for key in keys.split(","):
            other = taken.setdefault(key.strip(), name)
            if other != name and {name, other} & set(chosen):
                raise InvalidParams(f"keys.{name}", f"{key.strip()} is the key of {other} too")


def key_names(chosen: Mapping[str, str]) -> list[tuple[str, str]]:
    """Keys and what they do, as help shows them."""
    shown = []
    for binding in ALL_KEYS:
        if binding.id is not None and "." not in binding.id:
            shown.append((key_text(chosen.get(binding.id, binding.key)), binding.description))
    return shown


def key_of(name: str, chosen: Mapping[str, str]) -> str:
    """The first key of an action, as a reader knows it."""
    return key_text(keys_of(name, chosen)[0])


def characters_of(name: str, chosen: Mapping[str, str]) -> frozenset[str]:
    """The keys of an action that a prompt would take as text."""
    return frozenset(key for key in keys_of(name, chosen) if len(key) == 1)


def keys_of(name: str, chosen: Mapping[str, str]) -> list[str]:
    """The keys of an action, as Textual names them."""
    key = next(one.key for one in ALL_KEYS if one.id == name)
    return [one.strip() for one in chosen.get(name, key).split(",")]


def key_text(keys: str) -> str:
    """``ctrl+j`` as ``Ctrl+J``; several keys are parted by "or"."""
    spelt = {"pageup": "PgUp", "pagedown": "PgDn", "escape": "Esc", "up": "Up"}
    named = [
        # A single character is typed as it stands.
        key[0]
        if len(key) == len(key[0]) == 1
        else "+".join(
            spelt.get(part, part.upper() if len(part) < 3 else part.title()) for part in key
        )
        for key in (one.strip().split("+") for one in keys.split(","))
    ]
    return " or ".join(named)
