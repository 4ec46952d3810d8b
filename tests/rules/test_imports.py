"""Rules of imports: what each module may load, alone and in a fresh process."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rules.tree import PLANNING, ROOT, imports_any, module_name, python_files

ENGINE = python_files("engine")
LIBRARY = python_files("engine", "mlxcel_cli")

MLX_LM_USERS = ("engine/models/", "engine/kv/", "engine/sampling/")

REFERENCE = Path("engine/models/reference.py")

ARRAYS = {"mlx", "mlx_lm", "transformers"}

HEAVY = ARRAYS | {"textual", "aiohttp", "numpy", "tokenizers"}

FRONT_ENDS = {"typer", "click", "textual", "prompt_toolkit", "aiohttp", "mlxcel_cli"}

IMPORT_EACH_ALONE = """
import json, os, sys, traceback
failures = {}
for name in json.loads(sys.argv[1]):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        try:
            __import__(name)
            problem = ""
        except BaseException:
            problem = traceback.format_exc()
        os.write(write, problem.encode()[-4000:])
        os._exit(0)
    os.close(write)
    with open(read) as pipe:
        problem = pipe.read()
    if os.waitpid(child, 0)[1] or problem:
        failures[name] = problem or "died"
json.dump(failures, sys.stdout)
"""
"""Forks a bare interpreter for each module: as fresh as a new process, and quicker."""


def run_python(code: str, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def packages_loaded_by(*modules: str) -> set[str]:
    imports = "; ".join(f"import {module}" for module in modules)
    listed = run_python(f"{imports}; import sys; print(*{{m.split('.')[0] for m in sys.modules}})")
    return set(listed.split())


@pytest.mark.timeout(300)
def test_each_module_imports_alone_in_a_fresh_process():
    names = [module_name(path) for path in LIBRARY]
    assert json.loads(run_python(IMPORT_EACH_ALONE, json.dumps(names))) == {}


def test_planning_modules_load_no_mlx():
    modules = [module_name(path) for path in PLANNING if (ROOT / path).exists()]
    assert packages_loaded_by(*modules) & ARRAYS == set()


def test_planning_loads_numpy_for_the_lookup_only():
    modules = [module_name(path) for path in PLANNING if (ROOT / path).exists()]
    plain = [name for name in modules if not name.startswith("engine.lookup.")]
    assert packages_loaded_by(*plain) & {"numpy"} == set()


def test_the_engine_loads_without_a_terminal_or_server():
    modules = [module_name(path) for path in ENGINE]
    assert packages_loaded_by(*modules) & FRONT_ENDS == set()


def test_the_engine_imports_no_event_loop():
    users = {str(path): imports_any(path, "asyncio", "socket") for path in ENGINE}
    assert {path: names for path, names in users.items() if names} == {}


def test_the_command_line_starts_without_the_heavy_packages():
    assert packages_loaded_by("mlxcel_cli.app") & HEAVY == set()


def test_mlx_lm_is_imported_only_by_model_kv_and_sampling_code():
    users = {
        str(path): names
        for path in LIBRARY
        if (names := imports_any(path, "mlx_lm")) and not path.as_posix().startswith(MLX_LM_USERS)
    }
    assert users == {}


def test_mlx_lm_s_own_loops_are_imported_only_by_the_reference():
    loops = ("mlx_lm.generate", "mlx_lm.server", "mlx_lm.stream_generate", "mlx_lm.batch_generate")
    users = {
        str(path): names
        for path in LIBRARY
        if (names := imports_any(path, *loops)) and path != REFERENCE
    }
    assert users == {}


def test_transformers_is_never_imported_at_the_top_of_a_module():
    assert packages_loaded_by(*[module_name(path) for path in ENGINE]) & {"transformers"} == set()
