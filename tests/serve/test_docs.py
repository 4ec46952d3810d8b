"""docs/server.md tells the truth: its examples run, its tables are the code's."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mlxcel_cli.command_tree import command_tree
from mlxcel_cli.serve.schema.anthropic import MESSAGES, MessagesRequest
from mlxcel_cli.serve.schema.fields import INERT, UNSUPPORTED
from mlxcel_cli.serve.schema.native import NATIVE, InfillRequest, NativeRequest, TokenizeRequest
from mlxcel_cli.serve.schema.requests import ALIASES, ChatRequest, CompletionRequest
from mlxcel_cli.serve_options import settings_table

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "server.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
ADDRESS = "http://127.0.0.1:8080"
WRITE = "python -m tests.serve.test_docs writes it anew"
CURLS = [block for kind, block in BLOCKS if kind == "sh" and block.startswith("curl")]
SCRIPTS = [block for kind, block in BLOCKS if kind == "python"]


def told(default: object) -> str:
    if isinstance(default, tuple):
        return "any" if default == ("*",) else "none"
    words = {None: "none", True: "on", False: "off"}
    return words[default] if default is None or isinstance(default, bool) else f"{default:}"


def settings_rows() -> str:
    options = {one.name: one.opts[0] for one in command_tree().commands["serve"].params}
    return "\n".join(
        f"| `{options[name]}` | {told(row.default)} | {row.change} | `MLXCEL_{name.upper()}` |"
        for name, row in settings_table().items()
    )


def test_the_table_of_settings_is_the_program_s():
    assert f"|---|---|---|---|\n{settings_rows()}\n" in TEXT, WRITE


def test_the_page_names_every_field():
    fields = {
        *ChatRequest.__struct_fields__,
        *CompletionRequest.__struct_fields__,
        *ALIASES,
        *INERT,
        *InfillRequest.__struct_fields__,
        *NativeRequest.__struct_fields__,
        *NATIVE.unsupported,
        *TokenizeRequest.__struct_fields__,
        *MessagesRequest.__struct_fields__,
        *MESSAGES.inert,
    } - {"content", "tokens"}
    assert {name for name in fields if f"`{name}`" not in TEXT} == set()
    assert len([name for name in UNSUPPORTED if f"`{name}`" in TEXT]) > 10


def test_the_page_names_every_endpoint(server):
    paths = {one.split()[1] for one in server.ask("GET", "/").json["endpoints"]}
    assert {path.replace("{model}", "{id}") for path in paths} <= set(
        re.findall(r"/[\w/.{}-]*", TEXT)
    )


@pytest.mark.parametrize("curl", [one for one in CURLS if "settings" not in one])
def test_curl_examples_get_an_answer(server, curl):
    done = subprocess.run(
        ["bash", "-c", curl.replace(ADDRESS, server.url)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert done.stdout
    assert '"error"' not in done.stdout


def test_the_example_of_a_changed_setting_changes_it(start_server):
    (curl,) = [one for one in CURLS if "settings" in one]
    server = start_server("--no-warmup", MLXCEL_API_KEY="k3y")
    done = subprocess.run(
        ["bash", "-c", curl.replace(ADDRESS, server.url)],
        env={"MLXCEL_API_KEY": "k3y", "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert '"sse_ping_interval":{"value":10,' in done.stdout


@pytest.mark.parametrize("script", SCRIPTS)
def test_python_examples_run(server, script):
    done = subprocess.run(
        [sys.executable, "-c", script.replace(ADDRESS, server.url)],
        capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout


if __name__ == "__main__":
    head, _, rest = TEXT.rpartition("|---|---|---|---|\n")
    after = rest[rest.index("\n\n") :]
    PAGE.write_text(f"{head}|---|---|---|---|\n{settings_rows()}{after}", encoding="utf-8")
