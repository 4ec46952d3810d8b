"""Help pages, completion scripts and generated docs: current, quick and readable."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mlxcel_cli.help_text import HELP_COLUMNS
from tests.cli.snapshots import TextSnapshot
from tests.rules.generated import completion_script, generated_files, help_pages

ROOT = Path(__file__).parents[2]
HIDDEN_ALIASES = {
    "--temp", "--repeat-penalty", "--repeat-last-n", "--no-chat-template", "--n-predict",
    "--predict", "--typical", "--mirostat-ent", "--mirostat-lr", "--dynatemp-exp",
    "--no-memory-check", "--system-prompt", "--max-batch-size", "--arms",
}  # fmt: skip
"""Spellings of llama.cpp, mlx-lm and older tools that are accepted and not advertised."""


@pytest.fixture
def pages(monkeypatch) -> dict[str, str]:
    monkeypatch.setenv("COLUMNS", str(HELP_COLUMNS))
    return dict(help_pages())


@pytest.fixture
def text_snapshot(snapshot):
    return snapshot.use_extension(TextSnapshot)


def ask(shell_variables: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command or (sys.executable, "-m", "mlxcel_cli"),
        env=os.environ | {"PYTHONPATH": str(ROOT), **shell_variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def complete(line: str) -> list[str]:
    """What a TAB at the end of ``line`` offers in bash; nothing else may be printed."""
    words = line.split(" ")
    done = ask(
        {
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(words) - 1),
            "_MLXCEL_COMPLETE": "complete_bash",
        }
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize("name", sorted(generated_files()))
def test_generated_files_are_current(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(HELP_COLUMNS))
    assert (ROOT / name).read_text(encoding="utf-8") == generated_files()[name], "make generated"


def test_every_help_page_is_as_it_was_reviewed(pages, text_snapshot):
    for name, page in pages.items():
        assert page == text_snapshot(name=name.replace(" ", "-"))


def test_help_pages_are_narrow_and_plain(pages):
    lines = [line for page in pages.values() for line in page.splitlines()]
    assert max(map(len, lines)) <= HELP_COLUMNS
    assert not any("\x1b" in line for line in lines)


def test_help_pages_show_no_alias(pages):
    words = {word.strip(",") for page in pages.values() for word in page.split()}
    assert words & HIDDEN_ALIASES == set()


@pytest.mark.parametrize("name", ["mlxcel", "mlxcel generate"])
def test_help_pages_end_with_examples(pages, name):
    assert "\nExamples:\n  mlxcel " in pages[name]


def test_the_help_page_is_what_help_prints(pages):
    done = ask({"COLUMNS": str(HELP_COLUMNS)}, sys.executable, "-m", "mlxcel_cli", "generate", "-h")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == pages["mlxcel generate"]


def test_tab_completes_commands():
    assert {"generate", "models"} <= set(complete("mlxcel "))
    assert complete("mlxcel gen") == ["generate"]


def test_tab_completes_options_but_no_alias(text_snapshot):
    offered = complete("mlxcel generate --")
    assert "\n".join(offered) + "\n" == text_snapshot
    assert set(offered) & HIDDEN_ALIASES == set()


def test_tab_completes_names_of_local_models(monkeypatch, tmp_path):
    hub = tmp_path / "hub"
    (hub / "models--mlx-community--Tiny-4bit").mkdir(parents=True)
    home = tmp_path / "home"
    (home / "models" / "mine").mkdir(parents=True)
    (home / "models" / "mine" / "config.json").write_text("{}")
    (home / "models" / "half-made").mkdir()
    options = tmp_path / "config.toml"
    options.write_text('[aliases]\nmini = "mlx-community/Tiny-4bit"\n')
    monkeypatch.setenv("HF_HUB_CACHE", str(hub))
    monkeypatch.setenv("MLXCEL_HOME", str(home))
    monkeypatch.setenv("MLXCEL_CONFIG", str(options))
    assert complete("mlxcel generate -m m") == ["mine", "mini", "mlx-community/Tiny-4bit"]
    assert "starter" in complete("mlxcel generate --model ")


def test_tab_offers_no_error_where_nothing_can_be_read(monkeypatch, tmp_path):
    broken = tmp_path / "config.toml"
    broken.write_text("not = = toml")
    monkeypatch.setenv("MLXCEL_CONFIG", str(broken))
    assert complete("mlxcel generate -m ") == ["starter"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_reads_its_completion_script(shell, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    script = tmp_path / "script"
    script.write_text(completion_script(shell))
    done = ask({}, shell, "-n", str(script))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_answered_in_one_line_an_option(shell):
    done = ask(
        {
            "_TYPER_COMPLETE_ARGS": "mlxcel generate --top",
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
            "_MLXCEL_COMPLETE": f"complete_{shell}",
        }
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert [word for word in ("--top-k", "--top-p", "--top-n-sigma") if word in done.stdout] == [
        "--top-k",
        "--top-p",
        "--top-n-sigma",
    ]
    assert len(done.stdout.splitlines()) == 3


HEAVY = ("mlx", "mlx_lm", "transformers", "textual", "aiohttp", "rich", "tokenizers", "numpy")


@pytest.mark.parametrize(
    ("arguments", "variables"),
    [
        pytest.param(["--help"], {}, id="mlxcel --help"),
        pytest.param(["generate", "--help"], {}, id="mlxcel generate --help"),
        pytest.param(["--version"], {}, id="mlxcel --version"),
        pytest.param(
            [],
            {"_MLXCEL_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "mlxcel generate -m "},
            id="TAB",
        ),
    ],
)
def test_what_must_be_quick_imports_nothing_heavy(arguments, variables):
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: sys.stderr.write(' '.join(sys.modules)))\n"
        f"sys.argv = ['mlxcel', *{arguments}]\n"
        "from mlxcel_cli.app import main\n"
        "main()"
    )
    done = ask(variables, sys.executable, "-c", code)
    assert done.returncode == 0
    assert {name.partition(".")[0] for name in done.stderr.split()} & set(HEAVY) == set()
