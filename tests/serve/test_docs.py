"""docs/server.md tells the truth: its examples run, its tables are the code's."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mlxcel_cli.command_tree import command_tree
from mlxcel_cli.serve.anthropic.schema import ANTHROPIC_FIELDS, MessagesRequest
from mlxcel_cli.serve.generation_fields import ALIASES
from mlxcel_cli.serve.llamacpp.schema import (
    LLAMACPP_FIELDS,
    InfillRequest,
    NativeRequest,
    TokenizeRequest,
)
from mlxcel_cli.serve.openai.schema import INERT, UNSUPPORTED, ChatRequest, CompletionRequest
from mlxcel_cli.serve_options import SETTINGS

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "server.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
ADDRESS = "http://127.0.0.1:8080"
WRITE = "python -m tests.serve.test_docs writes it anew"
CURLS = [block for kind, block in BLOCKS if kind == "sh" and block.startswith("curl")]
SCRIPTS = [block for kind, block in BLOCKS if kind == "python"]
SINGLE = (
    ("sh", "mlxcel serve"),
    ("sh", "export OPENAI_BASE_URL"),
    ("yaml", "- model_id"),
)
"""Examples with a test of their own."""


def told(default: object) -> str:
    if isinstance(default, tuple):
        return "any" if default == ("*",) else "none"
    words = {None: "none", True: "on", False: "off"}
    return words[default] if default is None or isinstance(default, bool) else f"{default:}"


def settings_rows() -> str:
    options = {one.name: one.opts[0] for one in command_tree().commands["serve"].params}
    return "\n".join(
        f"| `{options[name]}` | {told(row.default)} | {row.change} | `MLXCEL_{name.upper()}` |"
        for name, row in SETTINGS.items()
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
        *LLAMACPP_FIELDS.unsupported,
        *TokenizeRequest.__struct_fields__,
        *MessagesRequest.__struct_fields__,
        *ANTHROPIC_FIELDS.inert,
    } - {"content", "tokens"}
    assert {name for name in fields if f"`{name}`" not in TEXT} == set()
    assert len([name for name in UNSUPPORTED if f"`{name}`" in TEXT]) > 10


def test_the_page_names_every_endpoint(server):
    paths = {one.split()[1] for one in server.ask("GET", "/").json["endpoints"]}
    assert {path.replace("{model}", "{id}") for path in paths} <= set(
        re.findall(r"/[\w/.{}-]*", TEXT)
    )


def test_the_table_of_endpoints_is_the_server_s(server):
    """Every row's methods and paths; one behind another, in brackets or not, has its method."""
    table = TEXT.partition("## Endpoints")[2].partition("##")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    told = set()
    for cell in cells:
        method = "*"
        for written in re.findall(r"`([^`]+)`", cell):
            *methods, path = written.split()
            method = methods[0] if methods else method
            told.add(f"{method} {path.replace('{id}', '{model}')}")
    served = set(server.ask("GET", "/").json["endpoints"])
    # The page says in words that these can be posted to, too.
    assert served - told == {"POST /props", "POST /v1/settings"}
    assert told <= served


def test_no_example_of_the_page_is_untried():
    tried = [*CURLS, *SCRIPTS, *(example(*one) for one in SINGLE)]
    # Text is what the page says was tried by hand.
    assert [block for kind, block in BLOCKS if block not in tried and kind != "text"] == []


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


def example(kind: str, start: str) -> str:
    """The one example of the page that begins so."""
    (found,) = [block for one, block in BLOCKS if one == kind and block.startswith(start)]
    return found


def test_the_first_command_listens_where_the_page_s_other_examples_ask(start_server):
    (_, command, *arguments) = example("sh", "mlxcel serve").split()
    assert (command, *arguments) == ("serve", "--port", "8080")
    assert ADDRESS.endswith(f":{SETTINGS['port'].default}")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    # 8080 may be taken where this runs.
    server = start_server(arguments[0], port, "--no-warmup")
    assert server.url == ADDRESS.replace("8080", port)
    assert server.ask("GET", "/health").status == 200


def test_the_exported_variables_lead_openai_s_package_here(server):
    export = example("sh", "export OPENAI_BASE_URL")
    ask = "from openai import OpenAI; print(OpenAI().models.list().data[0].id)"
    done = subprocess.run(
        ["bash", "-c", f"{export.replace(ADDRESS, server.url)}{sys.executable} -c '{ask}'"],
        env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "pet"


def test_the_entry_for_llm_has_what_its_openai_models_take_and_a_model_served_here(server):
    """What llm makes of such an entry: a client of ``api_base`` that asks for ``model_name``."""
    from openai import OpenAI

    lines = example("yaml", "- model_id").removeprefix("- ").splitlines()
    entry = dict(line.strip().replace('"', "").split(": ", 1) for line in lines)
    assert entry == {"model_id": "mlxcel", "model_name": "default", "api_base": f"{ADDRESS}/v1"}
    client = OpenAI(base_url=entry["api_base"].replace(ADDRESS, server.url), api_key="none")
    stream = client.chat.completions.create(
        model=entry["model_name"],
        messages=[{"role": "user", "content": "Hello"}],
        max_tokens=4,
        stream=True,
        stream_options={"include_usage": True},
    )
    # What a random model draws may end it sooner.
    assert 1 <= [chunk.usage for chunk in stream][-1].completion_tokens <= 4


def test_llm_itself_answers_by_the_page_s_entry(server, tmp_path):
    entry = example("yaml", "- model_id").replace(ADDRESS, server.url)
    (tmp_path / "extra-openai-models.yaml").write_text(entry)
    done = subprocess.run(
        [sys.executable, "-m", "llm", "-m", "mlxcel", "Hello", "-o", "max_tokens", "8"],
        env={"LLM_USER_PATH": str(tmp_path), "PATH": "/usr/bin:/bin", "OPENAI_API_KEY": "none"},
        stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


if __name__ == "__main__":
    head, _, rest = TEXT.rpartition("|---|---|---|---|\n")
    after = rest[rest.index("\n\n") :]
    PAGE.write_text(f"{head}|---|---|---|---|\n{settings_rows()}{after}", encoding="utf-8")
