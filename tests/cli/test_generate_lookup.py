"""``mlxcel generate --prompt-lookup`` as a program: what is asked, refused and told."""

import json

import pytest

COUNTS = {"rounds": 5, "drafted_rounds": 2, "proposed": 8, "accepted": 6, "shadow_confirmations": 1}
TIMINGS = {"draft_n": 8, "draft_n_accepted": 6, "draft_rounds": 2}
DRAFTED = {"answer": [["text", "Hello"]], "lookup": COUNTS, "timings": TIMINGS}


def timings(done) -> dict:
    return json.loads(done.stdout.decode().splitlines()[-1])["timings"]


def test_stats_report_what_it_did_in_one_line_of_pairs(program):
    done = program.run("generate", "hi", "--prompt-lookup", "--stats", script=DRAFTED)
    assert done.stdout == b"Hello\n"
    line = done.stderr.decode().splitlines()[-1]
    tag, pairs = line.split("] ")
    assert tag == "[Prompt lookup"
    assert dict(pair.split("=") for pair in pairs.split()) == {
        "rounds": "5", "drafted_rounds": "2", "paused_rounds": "0", "proposed": "8",
        "accepted": "6", "acceptance_rate": "0.7500", "tokens_per_forward": "0.4000",
        "shadow_confirmations": "1",
    }  # fmt: skip


def test_without_it_stats_have_no_such_line(program):
    assert b"[Prompt lookup]" not in program.run("generate", "hi", "--stats").stderr


def test_json_counts_the_drafts_of_verify_rounds(program):
    told = timings(program.run("generate", "hi", "--prompt-lookup", "--json", script=DRAFTED))
    assert {key: value for key, value in told.items() if key.startswith("draft")} == {
        "draft_kind": "prompt-lookup",
        **TIMINGS,
    }


def test_json_has_no_such_counts_when_nothing_was_verified(program):
    script = {"answer": [["text", "Hello"]], "lookup": {"rounds": 5}}
    told = timings(program.run("generate", "hi", "--prompt-lookup", "--json", script=script))
    assert not any(key.startswith("draft") for key in told)


def test_settings_and_lookup_files_reach_the_engine(program, tmp_path):
    file, request = tmp_path / "notes.txt", tmp_path / "request"
    file.write_text("copy me")
    arguments = ("--prompt-lookup-max-draft", "5", "--lookup-file", str(file))
    script = {"answer": [["text", "Hello"]], "request": str(request)}
    done = program.run("generate", "hi", "--prompt-lookup", *arguments, script=script)
    assert done.returncode == 0
    asked = request.read_text()
    assert "max_draft=5" in asked
    assert f"lookup_texts=(({str(file)!r}, 'copy me'),)" in asked


def test_a_lookup_file_that_is_missing_is_reported_before_a_model_is_loaded(program):
    done = program.run(
        "generate", "hi", "--prompt-lookup", "--lookup-file", "nope", script={"load": [["missing"]]}
    )
    assert done.stderr == b"mlxcel: nope: No such file or directory\n"
    assert done.returncode != 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("--prompt-lookup-max-draft", "5"), ("--prompt-lookup-ngram-max", "3"),
        ("--prompt-lookup-ngram-min", "2"), ("--prompt-lookup-policy", "auto"),
        ("--lookup-file", "a"), ("--prompt-lookup-max-draft", "5", "--no-prompt-lookup"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_an_option_that_needs_it_names_it(program, arguments):
    done = program.run("generate", "hi", *arguments, script={"load": [["missing"]]})
    assert done.returncode == 2
    assert done.stderr == f"mlxcel: {arguments[0]}: needs --prompt-lookup\n".encode()


def test_the_environment_may_switch_it_on(program, tmp_path):
    request = tmp_path / "request"
    script = {"answer": [["text", "Hello"]], "request": str(request)}
    done = program.run(
        "generate", "hi", "--prompt-lookup-max-draft", "5", script=script, MLXCEL_PROMPT_LOOKUP="1"
    )
    assert done.returncode == 0
    assert "max_draft=5" in request.read_text()


@pytest.mark.parametrize("mode", [(), ("--json",)], ids=["text", "json"])
def test_a_refusal_is_an_error_that_names_the_reason(program, mode):
    script = {"answer": [["refuse", "is not possible here: the model says no"], ["text", "Hello"]]}
    done = program.run("generate", "hi", "--prompt-lookup", *mode, script=script)
    assert done.returncode == 2
    said = done.stdout if mode else done.stderr
    assert b"--prompt-lookup: is not possible here: the model says no" in said
    assert b"Hello" not in done.stdout


def test_a_drafter_that_was_dropped_is_reported_and_the_answer_stands(program):
    script = {"answer": [["text", "Hello"]], "dropped": "it made up a token"}
    done = program.run("generate", "hi", "--prompt-lookup", script=script)
    assert (done.returncode, done.stdout) == (0, b"Hello\n")
    assert done.stderr == b"mlxcel: prompt lookup ended early: it made up a token\n"
