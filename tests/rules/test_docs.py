"""Rule: the documentation tells the truth. Paths, commands, options and symbols it names exist."""

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from mlxcel_cli import app, generation
from mlxcel_cli.command_lines import GenerateCommand
from mlxcel_cli.command_tree import command_tree
from mlxcel_cli.commands.generate import EXAMPLES
from mlxcel_cli.prompt_input import plan_prompt
from tests.rules.tree import ROOT, tracked_files

PAGES = [path for path in tracked_files() if path.suffix == ".md" and path.parts[0] != "snapshots"]

ADRS = [path for path in PAGES if re.match(r"docs/adr/\d", path.as_posix())]

ADR_SECTIONS = ["Status", "Context", "Decision", "Rejected", "Consequences"]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

SPAN = re.compile(r"`([^`\n]+)`")

SHELL = {"sh", "bash", "console"}

PATH_ROOTS = ("engine/", "mlxcel_cli/", "tests/", "docs/", "benchmarks/", "snapshots/", ".ci/")

MAKE_TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))

each_page = pytest.mark.parametrize("page", PAGES, ids=str)


def text_of(page: Path) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def shell_lines(text: str) -> Iterator[str]:
    """Lines of the shell blocks, without comments; continued lines are joined."""
    for language, block in FENCE.findall(text):
        if language in SHELL:
            for line in block.replace("\\\n", " ").splitlines():
                yield line.removeprefix("$ ").split("  #")[0]


def spans(text: str) -> list[str]:
    """Code spans outside the blocks."""
    return SPAN.findall(FENCE.sub("", text))


def commands(text: str, program: str) -> list[list[str]]:
    """What the page tells to type after ``program``, as words."""
    found = []
    for source in [*shell_lines(text), *spans(text)]:
        for piece in re.split(r"\s(?:\||&&|;)\s", source):
            words = shlex.split(piece.split(" > ")[0].split(" < ")[0], comments=True)
            if words and Path(words[0]).name == program:
                found.append(words[1:])
    return found


def test_the_rule_sees_the_pages():
    assert {Path("README.md"), Path("CONTRIBUTING.md")} <= set(PAGES)
    assert len(ADRS) >= 5


@pytest.mark.parametrize("page", ADRS, ids=str)
def test_every_decision_has_its_sections_in_order(page: Path):
    assert re.findall(r"^## (.+)$", text_of(page), re.MULTILINE) == ADR_SECTIONS


@pytest.mark.parametrize("page", ADRS, ids=str)
def test_every_decision_is_listed_by_number_and_title(page: Path):
    number, title = re.match(r"# (\d{4}): (.+)\n", text_of(page)).groups()
    assert page.name.startswith(f"{number}-")
    assert f"| [{number}]({page.name}) | {title} |" in text_of(Path("docs/adr/README.md"))


def test_decisions_are_numbered_without_gaps():
    numbers = [int(page.name[:4]) for page in ADRS]
    assert numbers == list(range(1, len(ADRS) + 1))


def test_the_readme_s_two_commands_come_first_and_the_gate_runs_them():
    first, second, *_ = shell_lines(text_of(Path("README.md")))
    gate = (ROOT / ".ci/run").read_text().splitlines()
    assert (first, second) == ("make try", "make check")
    assert {first, second} <= set(gate)


@each_page
def test_make_targets_that_a_page_names_exist(page: Path):
    named = {
        word
        for words in commands(text_of(page), "make")
        for word in words
        if "=" not in word and not word.startswith("-")
    }
    assert named - MAKE_TARGETS == set()


def test_every_make_target_is_phony_and_described():
    makefile = (ROOT / "Makefile").read_text()
    described = re.findall(r"^\.PHONY: ([a-z-]+)\n\1:.* ## \S", makefile, re.MULTILINE)
    assert set(described) == MAKE_TARGETS


@each_page
def test_links_of_a_page_lead_somewhere(page: Path):
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", FENCE.sub("", text_of(page)))
    local = [link for link in links if "://" not in link and not link.startswith("mailto:")]
    assert [link for link in local if not (ROOT / page.parent / link).exists()] == []


@each_page
def test_paths_that_a_page_names_exist(page: Path):
    named = {span for span in spans(text_of(page)) if span.startswith(PATH_ROOTS)}
    named = {re.sub(r"(\.py):[\w.]+$", r"\1", span) for span in named}  # `file.py:function`
    plain = {span for span in named if not re.search(r"[\s*<>{}|…]|NNNN", span)}
    assert {span for span in plain if not (ROOT / span).exists()} == set()


@each_page
def test_symbols_that_a_page_names_exist(page: Path):
    named = {
        span.removesuffix("()")
        for span in spans(text_of(page))
        if re.fullmatch(r"(?:engine|mlxcel_cli)(?:\.\w+)+(?:\(\))?", span)
    }
    assert {name for name in named if not resolves(name)} == set()


@each_page
def test_commands_that_a_page_names_are_the_program_s(page: Path):
    typed = commands(text_of(page), "mlxcel")
    assert [problem for words in typed for problem in problems(words)] == []


def test_the_tree_in_the_readme_is_the_repository_s():
    block = next(body for name, body in FENCE.findall(text_of(Path("README.md"))) if not name)
    folders: list[str] = []
    for line in block.splitlines():
        name = line.split()[0]
        depth = (len(line) - len(line.lstrip())) // 2
        folders[depth:] = [name]
        assert (ROOT / "".join(folders)).exists(), name


def examples_of_generate() -> list[tuple[str, ...]]:
    """On the pages and in its own help."""
    in_help = [line.rpartition("| ")[2] for line in EXAMPLES.splitlines() if "mlxcel " in line]
    typed = [words for page in PAGES for words in commands(text_of(page), "mlxcel")]
    typed += [shlex.split(line)[1:] for line in in_help]
    return sorted({tuple(words) for words in typed if words[:1] == ["generate"] and words[1:]})


def test_there_are_examples():
    assert len(examples_of_generate()) > 8


@pytest.mark.parametrize("words", examples_of_generate(), ids=" ".join)
def test_an_example_s_sources_go_together(words, monkeypatch, tmp_path):
    asked: list[GenerateCommand] = []
    monkeypatch.setattr(generation, "generate_once", lambda options: asked.append(options) or 0)
    monkeypatch.setenv("MLXCEL_CONFIG", str(tmp_path / "none.toml"))
    assert app.run(list(words)) == 0
    # A stdin that is a file, as behind a pipe.
    with Path(__file__).open("rb") as stdin:
        for options in asked:
            plan_prompt(options.words or (), options.prompt, stdin)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (["generate", "--no-such-option"], "--no-such-option"),
        (["no-such-command"], "no-such-command"),
        (["models", "no-such-command"], "no-such-command"),
    ],
)
def test_what_counts_as_a_wrong_command(words: list[str], fault: str):
    assert any(fault in problem for problem in problems(words))


def resolves(dotted: str) -> bool:
    """Whether a module, or a name in one, goes by ``dotted``."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


def problems(words: list[str]) -> list[str]:
    """Subcommands and options among ``words`` that the program does not know."""
    command = command_tree()
    found = []
    for word in words:
        is_name = re.fullmatch(r"[a-z][a-z-]*", word) is not None
        if hasattr(command, "commands") and is_name:
            if word not in command.commands:
                return [*found, f"no command {word!r} in {words}"]
            command = command.commands[word]
        elif re.match(r"--?[a-zA-Z]", word):
            option = word.split("=")[0]
            known = {name for param in command.params for name in param.opts}
            known |= {name for param in command.params for name in param.secondary_opts}
            if option not in known | {"--help"}:
                found.append(f"no option {option!r} in {words}")
    return found
