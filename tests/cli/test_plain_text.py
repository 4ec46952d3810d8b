"""What a terminal may be shown: no control character of a model's, file's or server's."""

import io
import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxcel_cli import app
from mlxcel_cli.output import Output
from mlxcel_cli.plain_text import encodable, marked, visible

HOSTILE = "\x1b]0;pwned\x07\x1b[2J\x9b31m\x90q\x9c\x08\r\x7f"

anything = st.text(st.characters(codec=None))


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def controls(text: str) -> set[str]:
    return {one for one in text if unicodedata.category(one) in ("Cc", "Cs")} - {"\n", "\t"}


@given(anything)
def test_no_control_character_is_left(text):
    assert controls(visible(text)) == controls(marked(text)) == set()
    assert len(marked(text)) == len(text)


@given(anything)
def test_what_can_be_shown_stays(text):
    plain = "".join(one for one in text if one not in controls(text))
    assert visible(plain) == marked(plain) == plain


@given(anything)
def test_everything_becomes_encodable(text):
    assert encodable(text).encode().decode() == encodable(text)
    with_pairs = json.loads(json.dumps(text))
    assert encodable(with_pairs) == encodable(text)


def test_a_broken_half_is_a_replacement_character_and_a_pair_is_whole():
    assert encodable("a\ud800b\udc00") == "a\ufffdb\ufffd"
    assert encodable("\ud83d\ude42") == "🙂"


def test_a_terminal_gets_no_control_character_by_any_way():
    stdout, stderr = Screen(), Screen()
    output = Output(stdout, stderr, {"NO_COLOR": "1"})
    output.write(HOSTILE)
    output.line(HOSTILE)
    output.json_line({"text": HOSTILE})
    output.note(HOSTILE)
    output.progress(HOSTILE)
    shown = stderr.getvalue().replace("\r", "", 1)
    assert controls(stdout.getvalue()) == set()
    assert controls(shown) == set()


def test_a_pipe_gets_the_answer_verbatim():
    stdout = io.StringIO()
    Output(stdout, None, {}).write(HOSTILE)
    assert stdout.getvalue() == HOSTILE


@given(anything)
def test_json_lines_come_back_as_they_were_and_hold_no_control_character(text):
    stdout = io.StringIO()
    Output(stdout, None, {}).json_line({"text": text})
    assert json.loads(stdout.getvalue()) == {"text": json.loads(json.dumps(text))}
    assert controls(stdout.getvalue()) - {one for one in text if one >= "\ud800"} == set()


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", f"--{HOSTILE}"],
        ["generate", "--temperature", HOSTILE, "hi"],
        [HOSTILE],
        ["generate", "hi", f"--config={HOSTILE}"],
    ],
)
def test_an_error_about_the_command_line_shows_no_control_character(arguments, capsys):
    assert app.run(arguments) == 2
    said = capsys.readouterr().err
    assert said
    assert controls(said) == set()
