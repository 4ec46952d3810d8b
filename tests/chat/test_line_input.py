"""Messages line by line: one each, several between triple quotes."""

import pytest

from mlxcel_cli.line_input import MessageReader

Q = '"""'


@pytest.mark.parametrize(
    ("lines", "messages"),
    [
        (["  hi  "], ["hi"]),
        (["", "   ", "hi"], ["hi"]),
        ([Q, "a", "", "b", Q], ["a\n\nb"]),
        ([f"{Q}a", f"b{Q}"], ["a\nb"]),
        ([f"{Q}body{Q}"], ["body"]),
        ([Q, "  indented", Q], ["  indented"]),
        ([Q, Q, "next"], ["next"]),
        (["not an opening " + Q], ["not an opening " + Q]),
    ],
)
def test_lines_become_messages(lines, messages):
    reader = MessageReader()
    found = [reader.push(line) for line in lines]
    assert [one for one in found if one is not None] == messages
    assert not reader.is_open


def test_the_end_of_input_sends_what_was_gathered():
    reader = MessageReader()
    assert reader.push(f"{Q}a") is None
    assert reader.is_open
    assert reader.flush() == "a"
    assert reader.flush() is None


def test_a_block_can_be_discarded():
    reader = MessageReader()
    reader.push(f"{Q}a")
    reader.discard()
    assert reader.push("b") == "b"
