"""Environments of chats that touch nothing of the user's."""

import pytest


@pytest.fixture
def environ(tmp_path):
    return {"MLXCEL_HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path / "config")}
