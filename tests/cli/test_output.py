"""The only writer to the terminal: streams, lines, colours and the progress line."""

import io
import json

import pytest

from engine.models.progress import Progress
from mlxcel_cli.output import Output, printable
from mlxcel_cli.progress_text import bytes_text, progress_text
from mlxcel_cli.signals import ReaderGone


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_is_ended_once():
    stdout = io.StringIO()
    output = Output(stdout, io.StringIO(), {})
    output.end_line()
    output.write("a")
    output.end_line()
    output.end_line()
    assert stdout.getvalue() == "a\n"


def test_json_lines_escape_what_stdout_cannot_encode():
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="replace")
    Output(stdout, None, {}).json_line({"text": "é 🌊"})
    assert json.loads(stdout.buffer.getvalue()) == {"text": "é 🌊"}


def test_json_lines_keep_unicode():
    stdout = io.StringIO()
    Output(stdout, None, {}).json_line({"text": "é\n"})
    assert stdout.getvalue() == '{"text": "é\\n"}\n'


def test_without_stderr_notes_are_lost_silently():
    Output(io.StringIO(), None, {}).note("lost")


def test_without_stdout_an_answer_is_an_error():
    with pytest.raises(OSError, match="stdout is closed"):
        Output(None, io.StringIO(), {}).write("a")


def test_a_reader_that_went_away_is_distinguished_from_other_errors():
    class Broken(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

        def fileno(self) -> int:
            raise OSError

    with pytest.raises(ReaderGone):
        Output(Broken(), None, {}).write("a")


def test_the_progress_line_is_overwritten_by_a_shorter_one_and_cleared_for_text():
    stderr = Screen()
    output = Output(io.StringIO(), stderr, {})
    output.progress("loading: 5 %")
    output.progress("done")
    output.note("a note")
    assert stderr.getvalue() == "\rloading: 5 %\rdone        \r    \ra note\n"


@pytest.mark.parametrize(
    ("environ", "dims"),
    [
        ({}, True),
        ({"NO_COLOR": ""}, True),
        ({"NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
    ],
)
def test_dim_text_needs_a_terminal_that_may_be_coloured(environ, dims):
    screen, pipe = Screen(), io.StringIO()
    Output(screen, None, environ).write("a", dim=True)
    Output(pipe, None, environ).write("a", dim=True)
    assert ("\x1b" in screen.getvalue()) == dims
    assert pipe.getvalue() == "a"


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress("pulling", 0, None), "pulling"),
        (Progress("pulling", 1536, None), "pulling: 1.5 KiB"),
        (Progress("pulling", 2**20, 2**22), "pulling: 25 % of 4.0 MiB"),
        (Progress("loading", 40, 100), "loading: 40 %"),
        (Progress("pulling", 5 * 2**30, 4 * 2**30), "pulling: 100 % of 4.0 GiB"),
    ],
)
def test_progress_says_how_far_it_is(progress, text):
    assert progress_text(progress) == text


def test_bytes_have_a_unit():
    assert [bytes_text(count) for count in (5, 2048, 3 * 2**30)] == [
        "5 bytes",
        "2.0 KiB",
        "3.0 GiB",
    ]


def test_names_reach_a_terminal_without_their_control_characters():
    assert printable("a\n\x1b[31mb ü 日本 🌊") == "a\\n\\x1b[31mb ü 日本 🌊"
    assert printable("\udcff") == "\\udcff"
