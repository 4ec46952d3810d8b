"""The shape of chat messages."""

import pytest

from engine.errors import InvalidParams
from engine.text.messages import check_messages, merge_system, parse_arguments


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        (None, "messages"),
        ("string", "messages"),
        ({}, "messages"),
        ([], "messages"),
        ([123], "messages[0]"),
        ([{}], "messages[0].role"),
        ([{"role": 123}], "messages[0].role"),
        ([{"role": ""}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 123}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "assistant", "content": None}], "messages[0].content"),
        ([{"role": "assistant", "content": None, "tool_calls": []}], "messages[0].content"),
        (
            [{"role": "user", "content": "a"}, {"role": "user", "content": b"b"}],
            "messages[1].content",
        ),
        ([{"role": "user", "content": ["a"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[0].content[0].type",
        ),
        ([{"role": "user", "content": ""}], "messages"),
        ([{"role": "system", "content": " "}, {"role": "user", "content": []}], "messages"),
        ([{"role": "assistant", "tool_calls": 3}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [3]}], "messages[0].tool_calls[0].function"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {}}]}],
            "messages[0].tool_calls[0].function.name",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 3}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_a_bad_shape_is_refused_by_its_field(messages, field):
    with pytest.raises(InvalidParams) as refused:
        check_messages(messages)
    assert refused.value.field == field


def test_an_image_is_refused_by_name():
    with pytest.raises(InvalidParams, match="got 'image_url': only text can be read"):
        check_messages([{"role": "user", "content": [{"type": "image_url"}]}])


def test_text_parts_are_joined_by_newlines():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert check_messages([{"role": "user", "content": parts}]) == [
        {"role": "user", "content": "a\nb"}
    ]


def test_the_developer_is_the_system():
    """llama.cpp PR#20079."""
    assert check_messages([{"role": "developer", "content": "a"}])[0]["role"] == "system"


def test_null_content_with_tool_calls_is_empty():
    """mlx-lm#185."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None}
    assert check_messages([message]) == [{"role": "assistant", "content": "", "tool_calls": [call]}]


def test_the_callers_messages_stay_as_they_are():
    message = {"role": "developer", "content": [{"type": "text", "text": "a"}]}
    check_messages([message])
    assert message == {"role": "developer", "content": [{"type": "text", "text": "a"}]}


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        (["system: s", "user: u"], ["user: s\n\nu"]),
        (["system: s", "system: t", "user: u", "user: v"], ["user: s\n\nt\n\nu", "user: v"]),
        (
            ["user: u", "system: s", "assistant: a", "user: v"],
            ["user: u", "assistant: a", "user: s\n\nv"],
        ),
        (["system: s"], ["user: s"]),
        (["user: u"], ["user: u"]),
    ],
)
def test_system_text_goes_to_the_next_user_turn(turns, expected):
    pairs = [turn.split(": ") for turn in turns]
    merged = merge_system([{"role": role, "content": content} for role, content in pairs])
    assert [f"{turn['role']}: {turn['content']}" for turn in merged] == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ("", {}),
        ("{broken", "{broken"),
        ("[1]", "[1]"),
        pytest.param("[" * 100_000, "[" * 100_000, id="nested without end"),
        ({"a": 1}, {"a": 1}),
    ],
)
def test_arguments_that_are_a_json_object_become_one(arguments, expected):
    turn = {
        "role": "assistant",
        "tool_calls": [{"function": {"name": "f", "arguments": arguments}}],
    }
    parsed = parse_arguments([turn])[0]["tool_calls"][0]["function"]
    assert parsed == {"name": "f", "arguments": expected}
    assert turn["tool_calls"][0]["function"]["arguments"] == arguments
