"""``mlxcel generate`` on pipes: what goes where, and how it ends."""

import json

import pytest

ESCAPE = b"\x1b"


def lines(output: bytes) -> list[dict]:
    return [json.loads(line) for line in output.decode().splitlines()]


def test_the_answer_alone_goes_to_stdout_and_ends_with_one_newline(program):
    done = program.run("generate", "hi")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"Hello world\n", b"")


def test_a_newline_the_answer_ends_with_is_not_doubled(program):
    done = program.run("generate", "hi", script={"answer": [["text", "Hello\n"]]})
    assert done.stdout == b"Hello\n"


def test_an_answer_of_no_tokens_writes_nothing(program):
    done = program.run("generate", "hi", script={"answer": []})
    assert (done.returncode, done.stdout) == (0, b"")


def test_piped_output_has_no_escape_codes_and_no_progress(program):
    script = {
        "load": [["progress", "loading", 1, 2]],
        "answer": [["read", 1, 2], ["think", "hm"], ["text", "Hello"]],
    }
    done = program.run("generate", "hi", "--show-reasoning", "--stats", script=script)
    assert ESCAPE not in done.stdout + done.stderr
    assert b"loading:" not in done.stderr
    assert b"\r" not in done.stdout + done.stderr


def test_stats_go_to_stderr(program):
    done = program.run("generate", "hi", "--stats")
    assert done.stdout == b"Hello world\n"
    assert done.stderr == (
        b"fake: loaded in 0.12 s; prompt 4 tokens in 0.50 s (8.0/s); first token after 0.50 s; "
        b"answer 3 tokens in 0.25 s (8.0/s); finish eos; seed 7\n"
    )


def test_verbose_says_on_stderr_what_was_chosen(program):
    done = program.run("generate", "-v", "hi")
    assert done.stdout == b"Hello world\n"
    assert done.stderr == b"mlxcel: fake (fake)\nmlxcel: dense weights\n"


def test_json_lines_are_deltas_and_one_done(program):
    done = program.run("generate", "hi", "--json")
    *deltas, end = lines(done.stdout)
    assert {delta["type"] for delta in deltas} == {"delta"}
    assert "".join(delta["text"] for delta in deltas) == "Hello world"
    assert end == {
        "type": "done",
        "text": "Hello world",
        "finish": "eos",
        "seed": 7,
        "model": "fake",
        "usage": {"prompt_tokens": 4, "completion_tokens": 3},
        "timings": {
            "load_ms": 125.0,
            "ttft_ms": 500.0,
            "prompt_n": 4,
            "prompt_ms": 500.0,
            "prompt_per_second": 8.0,
            "predicted_n": 3,
            "predicted_ms": 250.0,
            "predicted_per_second": 8.0,
        },
    }


def test_json_keeps_reasoning_apart(program):
    script = {"answer": [["think", "hm"], ["text", "Hello"]]}
    kinds = [
        line["type"]
        for line in lines(program.run("generate", "hi", "--json", script=script).stdout)
    ]
    assert kinds == ["reasoning", "delta", "done"]


def test_json_writes_unicode_as_it_is(program):
    done = program.run("generate", "hi", "--json", script={"answer": [["text", "日本 🌊"]]})
    assert "日本 🌊".encode() in done.stdout


@pytest.mark.parametrize(
    ("script", "code", "kind"),
    [
        pytest.param({"load": [["missing"]]}, 3, "model_not_found", id="no such model"),
        pytest.param({"load": [["full disk"]]}, 12, "storage_error", id="full disk"),
        pytest.param({"answer": [["fail"]]}, 11, "eval_failed", id="the backend fails"),
        pytest.param({"answer": [["crash"]]}, 1, "internal_error", id="a bug"),
    ],
)
def test_a_failure_is_one_line_and_a_status_and_under_json_an_object(program, script, code, kind):
    plain = program.run("generate", "-m", "nope", "hi", script=script)
    assert (plain.returncode, plain.stdout) == (code, b"")
    assert plain.stderr.startswith(b"mlxcel: ")
    assert plain.stderr.count(b"\n") == 1
    failed = program.run("generate", "-m", "nope", "hi", "--json", script=script)
    assert (failed.returncode, failed.stderr) == (code, b"")
    (error,) = lines(failed.stdout)
    assert (error["type"], error["error"]["type"]) == ("error", kind)
    assert f"mlxcel: {error['error']['message']}\n".encode() == plain.stderr


def test_what_was_written_before_a_failure_stays_on_a_line_of_its_own(program):
    done = program.run("generate", "hi", script={"answer": [["text", "Hello"], ["fail"]]})
    assert (done.returncode, done.stdout) == (11, b"Hello\n")


def test_a_bug_shows_its_traceback_only_when_asked(program):
    script = {"answer": [["crash"]]}
    assert b"Traceback" not in program.run("generate", "hi", script=script).stderr
    assert (
        b"ZeroDivisionError"
        in program.run("generate", "hi", script=script, MLXCEL_DEBUG="1").stderr
    )


def test_a_full_disk_names_the_file(program):
    done = program.run("generate", "hi", script={"load": [["full disk"]]})
    assert done.stderr == b"mlxcel: /somewhere/model.part: No space left on device\n"


def test_reasoning_is_hidden_unless_asked_for(program):
    script = {"answer": [["think", "hm"], ["text", "Hello"]]}
    assert program.run("generate", "hi", script=script).stdout == b"Hello\n"
    assert program.run("generate", "hi", "--show-reasoning", script=script).stdout == b"hm\nHello\n"


def test_an_answer_of_reasoning_alone_says_so(program):
    done = program.run("generate", "hi", script={"answer": [["think", "hm"]]})
    assert (done.returncode, done.stdout) == (0, b"")
    assert b"--show-reasoning" in done.stderr


def test_a_base_model_is_warned_about_unless_the_prompt_is_raw(program):
    script = {"base": True, "answer": [["text", "Hello"]]}
    assert b"base model" in program.run("generate", "hi", script=script).stderr
    assert program.run("generate", "hi", "--raw", script=script).stderr == b""


def test_an_option_that_does_not_exist_is_refused_with_a_suggestion(program):
    done = program.run("generate", "hi", "--temprature", "1")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"--temprature" in done.stderr
    assert b"--temperature" in done.stderr


def test_a_command_that_does_not_exist_is_refused_with_a_suggestion(program):
    done = program.run("generat", "hi")
    assert done.returncode == 2
    assert b"'generate'" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--top-p", "3"), ("--temperature", "-1"), ("--mirostat", "3"), ("--seed", "-2"),
        ("--max-tokens", "-2"), ("--ctx-size", "0"), ("--logit-bias", "yes"), ("--top-k", "x"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_bad_value_is_refused_by_its_option_s_name_before_a_model_is_loaded(program, arguments):
    done = program.run("generate", "hi", *arguments, script={"load": [["missing"]]})
    assert done.returncode == 2
    assert arguments[0].encode() in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("--temp", "0.5"), ("--repeat-penalty", "1.1"), ("--repeat-last-n", "-1"), ("-n", "-1"),
        ("-n", "0"), ("--no-chat-template",), ("--typical", "0.9"), ("--seed", "-1"), ("-c", "64"),
        ("--logit-bias", "15=-inf"), ("--logit-bias", '"a=b"=2'), ("--top-n-sigma", "-1"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_values_and_spellings_that_people_use_are_accepted(program, arguments):
    assert program.run("generate", "hi", *arguments).returncode == 0


def test_a_reader_that_goes_away_ends_the_program_quietly(program):
    forever = {"answer": [["forever", "line\n"]]}
    done = program.shell("mlxcel generate hi | head -1; echo ${PIPESTATUS[0]}", forever)
    assert done.stdout == b"line\n141\n"
    assert done.stderr == b""


def test_a_full_disk_behind_stdout_is_reported(program):
    done = program.shell("mlxcel generate hi > /dev/full")
    assert done.returncode == 12
    assert done.stderr == b"mlxcel: No space left on device\n"


def test_a_closed_stderr_costs_nothing(program):
    done = program.shell("mlxcel generate hi --stats 2>&-")
    assert (done.returncode, done.stdout) == (0, b"Hello world\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "hi", "--json", "--top-k", "many"),
        ("generate", "hi", "--json", "--no-such-option"),
        ("models", "show", "no-such-model", "--json"),
        ("models", "list", "--json", "--config", "/no/such/file"),
    ],
)
def test_under_json_what_never_started_is_an_object_too(program, arguments):
    done = program.run(*arguments)
    (error,) = lines(done.stdout)
    assert (error["type"], done.stderr) == ("error", b"")
    assert done.returncode in (2, 3)


def test_a_prompt_that_says_json_asks_for_none(program):
    done = program.run("generate", "--top-k", "many", "--", "--json")
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "<&- 2>&-"])
def test_a_closed_stream_lends_its_number_to_no_file(program, tmp_path, closed):
    script = {"answer": [["text", "Hello"]], "opens": str(tmp_path / "weights")}
    done = program.shell(f"mlxcel generate hi {closed}", script=script)
    assert (done.returncode, done.stdout) == (0, b"Hello\n")
    assert int((tmp_path / "weights").read_text()) > 2
