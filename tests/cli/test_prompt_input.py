"""Where a prompt comes from, and which sources exclude each other."""

import io
import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from engine.errors import InvalidParams
from mlxcel_cli.options import PromptOptions
from mlxcel_cli.prompt_input import PromptInput, parse_messages, plan_prompt, read_prompt


@pytest.fixture
def pipe(tmp_path):
    """A stdin with some bytes: a file, which counts as a pipe does."""
    path = tmp_path / "stdin"
    with ExitStack() as files:

        def make(content: bytes):
            path.write_bytes(content)
            return files.enter_context(path.open("rb"))

        yield make


def ask(*words: str, stdin=None, **options) -> PromptInput:
    return read_prompt(plan_prompt(words, PromptOptions(**options), stdin), stdin)


def text_of(prompt: PromptInput) -> object:
    assert prompt.messages is not None
    return prompt.messages[-1]["content"]


def test_words_are_joined_by_spaces():
    assert text_of(ask("why", "is the", "sky")) == "why is the sky"


def test_an_option_and_a_file_are_prompts_too(tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("from a file\n")
    assert text_of(ask(prompt="given")) == "given"
    assert text_of(ask(file=file)) == "from a file"


def test_a_pipe_is_joined_after_the_prompt_with_a_blank_line_between(pipe):
    assert text_of(ask("explain:", stdin=pipe(b"a\nb\n"))) == "explain:\n\na\nb"


def test_a_file_is_joined_after_the_prompt_and_a_pipe_after_both(tmp_path, pipe):
    file = tmp_path / "notes.md"
    file.write_text("notes\n")
    assert text_of(ask("fix:", file=file)) == "fix:\n\nnotes"
    assert (
        text_of(ask(prompt="fix:", file=file, stdin=pipe(b"piped\n"))) == "fix:\n\nnotes\n\npiped"
    )
    assert ask("fix:", file=file, raw=True).raw == "fix:\n\nnotes\n"


def test_a_pipe_alone_is_the_prompt(pipe):
    assert text_of(ask(stdin=pipe(b"hello\n"))) == "hello"


def test_an_empty_pipe_with_a_prompt_adds_nothing(pipe):
    assert text_of(ask("hello", stdin=pipe(b""))) == "hello"


def test_a_dash_is_stdin_whatever_it_is():
    class Terminal(io.BytesIO):
        def fileno(self):
            raise OSError

    assert text_of(ask("-", stdin=Terminal(b"typed\n"))) == "typed"
    assert text_of(ask(file=Path("-"), stdin=Terminal(b"typed\n"))) == "typed"


def test_a_stdin_that_is_no_pipe_is_left_alone():
    class Terminal(io.BytesIO):
        def read(self, *_):
            raise AssertionError("it would block")

    assert text_of(ask("hello", stdin=Terminal())) == "hello"


def test_a_byte_order_mark_is_no_part_of_a_text(pipe):
    assert text_of(ask(stdin=pipe(b"\xef\xbb\xbfhello"))) == "hello"


def test_the_system_message_comes_first():
    messages = ask("hi", system="be brief").messages
    assert [(one["role"], one["content"]) for one in messages] == [
        ("system", "be brief"),
        ("user", "hi"),
    ]


def test_a_raw_prompt_keeps_every_byte_and_takes_the_start_of_the_answer(pipe):
    prompt = ask(stdin=pipe(b"Once upon\n"), raw=True, prefill=" a")
    assert prompt == PromptInput(raw="Once upon\n a", prefill=" a")


@pytest.mark.parametrize(
    "wrap", [lambda turns: turns, lambda turns: {"messages": turns}], ids=["array", "object"]
)
def test_a_conversation_is_read_from_json(tmp_path, wrap):
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": [{"type": "text", "text": "bye"}]},
    ]
    file = tmp_path / "turns.json"
    file.write_text(json.dumps(wrap(turns)))
    messages = ask(messages=file, system="be brief").messages
    assert [one["role"] for one in messages] == ["system", "user", "assistant", "user"]
    assert messages[-1]["content"] == "bye"


def test_a_conversation_can_come_from_stdin(pipe):
    stdin = pipe(b'[{"role": "user", "content": "hi"}]')
    assert text_of(ask(messages=Path("-"), stdin=stdin)) == "hi"


@pytest.mark.parametrize(
    ("words", "options", "both"),
    [
        (("a",), {"prompt": "b"}, ("words", "--prompt")),
        (("a",), {"prompt": "b", "file": Path("f")}, ("words", "--prompt")),
        (("a",), {"messages": Path("f")}, ("words", "--messages")),
        ((), {"file": Path("f"), "messages": Path("g")}, ("--file", "--messages")),
        ((), {"prompt": "b", "messages": Path("f")}, ("--prompt", "--messages")),
        (("-",), {"file": Path("-")}, ("stdin", "--file")),
        ((), {"raw": True, "prompt": "a", "system": "b"}, ("--raw", "--system")),
        ((), {"raw": True, "messages": Path("f")}, ("--raw", "--messages")),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else None,
)
def test_sources_that_exclude_each_other_are_both_named(words, options, both):
    with pytest.raises(InvalidParams) as caught:
        plan_prompt(words, PromptOptions(**options), io.BytesIO())
    assert [name for name in both if name not in str(caught.value)] == []


@pytest.mark.parametrize(
    "content",
    [
        b"", b"  \n", b"\xb5\xb1 caf\xe9",
    ],
    ids=["empty", "blank", "not UTF-8"],
)  # fmt: skip
def test_a_text_that_is_no_prompt_is_refused(pipe, content):
    with pytest.raises(InvalidParams):
        ask(stdin=pipe(content))


def test_bytes_that_are_no_utf_8_are_named_with_their_file(tmp_path):
    file = tmp_path / "latin.txt"
    file.write_bytes(b"caf\xe9")
    with pytest.raises(InvalidParams, match=r"latin\.txt: is not UTF-8 text: byte 0xe9 at 3"):
        ask(file=file)


@pytest.mark.parametrize(
    "content",
    [
        "not json", "null", '"text"', "[]", "[123]", "[{}]", '[{"role": 123, "content": "x"}]',
        '[{"role": "user", "content": 123}]', "{}", '{"messages": 1}',
    ],
)  # fmt: skip
def test_a_malformed_conversation_is_refused_by_name(tmp_path, content):
    file = tmp_path / "turns.json"
    file.write_text(content)
    with pytest.raises(InvalidParams, match="messages"):
        ask(messages=file)


def test_a_second_system_message_is_refused(tmp_path):
    file = tmp_path / "turns.json"
    file.write_text('[{"role": "developer", "content": "a"}, {"role": "user", "content": "b"}]')
    with pytest.raises(InvalidParams, match="--system"):
        ask(messages=file, system="c")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[" * 100_000, id="nested without end"),
        pytest.param(
            f'[{{"role": "user", "content": "a", "n": {"9" * 5000}}}]', id="endless digits"
        ),
    ],
)
def test_a_conversation_that_json_readers_give_up_on_is_refused(text):
    with pytest.raises(InvalidParams, match="--messages"):
        parse_messages(text)
