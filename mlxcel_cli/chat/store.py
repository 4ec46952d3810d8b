"""Saves chats as they happen, in one SQLite file that several programs may use at once.

A message is in the file when the call that saves it returns: a crash loses at most what was
written of an answer since the last save. Each chat has a revision; who finds another than the one
it knows continues in a chat of its own, so two programs never mix their turns.
"""

import errno
import json
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from engine.errors import InvalidParams
from mlxcel_cli.chat.messages import Chat, ChatMessage, Numbers
from mlxcel_cli.plain_text import encodable

SCHEMA_VERSION = 1
"""Written into the file; a newer program's file is refused, not spoilt."""

BUSY_S = 10.0
"""How long a call waits for another program to release the file, by default."""

ONE_TRY_S = 0.02
"""How long SQLite itself waits: as much as another chat's write takes. It ignores Ctrl-C then."""

BETWEEN_TRIES_S = 0.05

ID_BYTES = 4

_SCHEMA = """
CREATE TABLE chats (
    id TEXT PRIMARY KEY,
    title TEXT NOT NULL,
    system TEXT NOT NULL,
    model TEXT NOT NULL,
    created_s REAL NOT NULL,
    changed_s REAL NOT NULL,
    revision INTEGER NOT NULL
);
CREATE TABLE messages (
    chat TEXT NOT NULL REFERENCES chats(id) ON DELETE CASCADE,
    place INTEGER NOT NULL,
    content TEXT NOT NULL,
    PRIMARY KEY (chat, place)
);
"""


class ChatsUnusable(OSError):
    """The file of saved chats cannot be used."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(errno.EIO, problem, str(path))


class ChatsBusy(ChatsUnusable):
    """Another program holds the file just now."""


@dataclass(frozen=True, slots=True)
class SavedChat:
    """A line of the list of chats."""

    id: str
    title: str
    model: str
    changed_s: float
    """Seconds since 1970."""
    messages: int


class ChatStore:
    """The saved chats.

    Args:
        path: the file; made with its folder at the first use.
        clock: seconds since 1970.
        wait_s: how long a call waits for another program.
    """

    def __init__(
        self, path: Path, *, clock: Callable[[], float] = time.time, wait_s: float = BUSY_S
    ) -> None:
        self.path = path
        self.wait_s = wait_s
        """0 where somebody waits for keys meanwhile: a call then says at once that it cannot."""
        self._clock = clock
        self._revisions: dict[str, int] = {}
        self._saved: dict[str, Chat] = {}

    def new_id(self) -> str:
        """An id that no saved chat has."""
        return secrets.token_hex(ID_BYTES)

    def save(self, chat: Chat) -> Chat:
        """Write what changed since this program last saved or loaded the chat.

        Returns:
            The chat; under another id where another program has changed it meanwhile.

        Raises:
            ChatsBusy: another program holds the file; a later call saves what this one would.
            ChatsUnusable: the file cannot be written.
        """
        if self._saved.get(chat.id) == chat:
            return chat
        with self._transaction() as file:
            chat = self._claimed(file, chat)
            before = self._saved.get(chat.id, Chat(chat.id)).messages
            same = _shared(before, chat.messages)
            file.execute("DELETE FROM messages WHERE chat = ? AND place >= ?", (chat.id, same))
            file.executemany(
                "INSERT INTO messages VALUES (?, ?, ?)",
                [
                    (chat.id, place, _to_json(message))
                    for place, message in enumerate(chat.messages)
                    if place >= same
                ],
            )
        self._revisions[chat.id] = self._revisions.get(chat.id, 0) + 1
        self._saved[chat.id] = chat
        return chat

    def load(self, chat_id: str) -> Chat:
        """A saved chat by its id or the beginning of it.

        Raises:
            InvalidParams: no chat, or several, go by that; names what to do.
            ChatsUnusable: the file cannot be read.
        """
        chat, revision = self._read(chat_id)
        self._revisions[chat.id] = revision
        self._saved[chat.id] = chat
        return chat

    def peek(self, chat_id: str) -> Chat:
        """A saved chat, as `load`, without making it this program's."""
        return self._read(chat_id)[0]

    def chats(self, search: str = "", *, limit: int = 200) -> list[SavedChat]:
        """Saved chats, the last changed first; those whose title or text holds ``search``."""
        if not self.path.exists():
            return []
        with self._transaction("BEGIN") as file:
            rows = file.execute(
                "SELECT id, title, model, changed_s, "
                "(SELECT count(*) FROM messages WHERE chat = id) AS messages FROM chats "
                "WHERE ?1 = '' OR instr(lower(title), lower(?1)) OR EXISTS (SELECT 1 FROM messages "
                "WHERE chat = id AND instr(lower(json_extract(content, '$.text')), lower(?1))) "
                "ORDER BY changed_s DESC, id LIMIT ?2",
                (encodable(search), limit),
            ).fetchall()
        return [SavedChat(*row) for row in rows]

    def newest(self) -> Chat | None:
        """The chat that was changed last."""
        newest = self.chats(limit=1)
        return self.load(newest[0].id) if newest else None

    def delete(self, chat_id: str) -> None:
        """Forget a chat; one that is not there is no error."""
        with self._transaction() as file:
            file.execute("DELETE FROM chats WHERE id = ?", (chat_id,))
        self._saved.pop(chat_id, None)
        self._revisions.pop(chat_id, None)

    def _read(self, chat_id: str) -> tuple[Chat, int]:
        with self._transaction("BEGIN") as file:
            found = file.execute(
                "SELECT id, title, system, model, revision FROM chats "
                "WHERE substr(id, 1, length(?1)) = ?1 ORDER BY id = ?1 DESC LIMIT 2",
                (encodable(chat_id),),
            ).fetchall()
            if not found or not chat_id:
                raise InvalidParams("--resume", f"no saved chat has the id {chat_id!r}")
            if len(found) > 1 and found[0][0] != chat_id:
                raise InvalidParams("--resume", f"several chats begin with {chat_id!r}")
            name, title, system, model, revision = found[0]
            rows = file.execute(
                "SELECT content FROM messages WHERE chat = ? ORDER BY place", (name,)
            ).fetchall()
        try:
            messages = tuple(_from_json(content) for (content,) in rows)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ChatsUnusable(self.path, f"holds chat {name} damaged: {error!r}") from error
        return Chat(name, title, system, model, messages), revision

    def _claimed(self, file: sqlite3.Connection, chat: Chat) -> Chat:
        """The chat with its row written, under an id that is this program's."""
        known = self._revisions.get(chat.id)
        now = self._clock()
        if known is not None:
            changed = file.execute(
                "UPDATE chats SET title = ?, system = ?, model = ?, changed_s = ?, "
                "revision = revision + 1 WHERE id = ? AND revision = ?",
                (*_heads(chat), now, chat.id, known),
            )
            if changed.rowcount:
                return chat
            # Another program continued it, or deleted it: this one keeps its own.
            chat = replace(chat, id=self.new_id())
        file.execute(
            "INSERT INTO chats VALUES (?, ?, ?, ?, ?, ?, 1)",
            (chat.id, *_heads(chat), now, now),
        )
        return chat

    @contextmanager
    def _transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = sqlite3.connect(self.path, timeout=ONE_TRY_S, isolation_level=None)
            try:
                self._prepare(file)
                self._patiently(file, begin)
                # A transaction that only reads takes its lock here.
                self._patiently(file, "SELECT count(*) FROM sqlite_master")
                yield file
                self._patiently(file, "COMMIT")
            finally:
                # Closing without COMMIT rolls back.
                file.close()
        except ChatsUnusable:
            raise
        except (OSError, sqlite3.Error) as error:
            if _is_busy(error):
                raise ChatsBusy(self.path, "is held by another program just now") from error
            problem = f"cannot be used ({error}); --no-save chats without it"
            raise ChatsUnusable(self.path, problem) from error

    def _prepare(self, file: sqlite3.Connection) -> None:
        file.execute("PRAGMA foreign_keys = ON")
        (version,) = self._patiently(file, "PRAGMA user_version")
        if version == SCHEMA_VERSION:
            return
        if version > SCHEMA_VERSION:
            raise ChatsUnusable(
                self.path, f"is of a newer mlxcel (format {version}); update, or use --no-save"
            )
        # Two programs may come here at once: who is first makes the tables.
        self._patiently(file, "BEGIN IMMEDIATE")
        (version,) = self._patiently(file, "PRAGMA user_version")
        if version == 0:
            for statement in _SCHEMA.strip().rstrip(";").split(";"):
                file.execute(statement)
            file.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        self._patiently(file, "COMMIT")
        # Chats are private.
        with suppress(OSError):
            self.path.chmod(0o600)

    def _patiently(self, file: sqlite3.Connection, statement: str) -> tuple[int, ...]:
        """The first row of a statement that another program's work may keep waiting."""
        end = time.monotonic() + self.wait_s
        while True:
            try:
                return file.execute(statement).fetchone() or ()
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() >= end:
                    raise
            time.sleep(BETWEEN_TRIES_S)


def _is_busy(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", 0)
    # The low byte is the kind, what is above it says more.
    return bool(code & 0xFF == sqlite3.SQLITE_BUSY)


def _shared(before: tuple[ChatMessage, ...], after: tuple[ChatMessage, ...]) -> int:
    """How many messages at the beginning are the same."""
    pairs = zip(before, after, strict=False)
    return next(
        (i for i, (old, new) in enumerate(pairs) if old != new), min(len(before), len(after))
    )


def _to_json(message: ChatMessage) -> str:
    # A prompt or an imported file may hold what has no UTF-8.
    return encodable(json.dumps(asdict(message), ensure_ascii=False))


def _heads(chat: Chat) -> tuple[str, str, str]:
    """A chat's own columns: title, system text and model."""
    return encodable(chat.title), encodable(chat.system), encodable(chat.model)


def _from_json(content: str) -> ChatMessage:
    values = json.loads(content)
    known = {one.name for one in fields(Numbers)}
    # A later mlxcel may have counted more.
    counted = values.pop("numbers").items()
    numbers = Numbers(**{name: value for name, value in counted if name in known})
    return ChatMessage(**values, numbers=numbers)
