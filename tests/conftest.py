"""What every test stands on: no network, no one's real settings, no run-to-run chance."""

import os
import signal
from pathlib import Path

import platformdirs
import pytest
from hypothesis import settings

settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci")

# A shell ignores Ctrl-C in what it starts in the background, and children inherit that: the tests
# that send one would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _private_home(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each test has an empty home of its own; the user's models and options stay unseen."""
    home = tmp_path_factory.mktemp("home")
    for name in [name for name in os.environ if name.startswith(("MLXCEL_", "_MLXCEL_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLXCEL_HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    monkeypatch.setenv("HF_HOME", str(home / "hub"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", os.environ.get("OPENBLAS_NUM_THREADS", "1"))


@pytest.fixture(scope="session")
def starter_folder() -> Path:
    """The starter model's folder; made once and kept between runs, MLXCEL_TEST_HOME says where."""
    from engine.models.starter import ensure_starter

    home = os.environ.get("MLXCEL_TEST_HOME")
    return ensure_starter(Path(home) if home else platformdirs.user_cache_path("mlxcel-tests"))


GPU_PARTS = (
    "tests/engine/test_",
    "tests/engine/kv/",
    "tests/engine/sampling/",
    "tests/engine/lookup/",
    "tests/engine/proofs/",
    "tests/cli/parity/",
)
"""Where the tests live that must also pass on Metal or CUDA: `make check-gpu`."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of those parts."""
    for item in items:
        if item.path.relative_to(config.rootpath).as_posix().startswith(GPU_PARTS):
            item.add_marker(pytest.mark.gpu)
