"""Rule: every error of the engine has its row in the table of each border."""

from collections.abc import Iterator

import pytest

from engine.errors import DrafterOutOfStep, EngineError, ModelFileError, UnknownSequence
from engine.models.gguf.convert import writing
from mlxcel_cli.exit_codes import ExitCode, error_type, exit_code

BUGS_OF_OURS = {UnknownSequence, DrafterOutOfStep}
"""No command line can cause these; they end as unforeseen failures."""


def kinds(base: type[EngineError]) -> Iterator[type[EngineError]]:
    for kind in base.__subclasses__():
        yield kind
        yield from kinds(kind)


each_error = pytest.mark.parametrize("kind", list(kinds(EngineError)))


@each_error
def test_every_engine_error_has_an_exit_code_of_its_own_kind(kind: type[EngineError]):
    error = kind.__new__(kind)
    is_general = exit_code(error) in {ExitCode.OK, ExitCode.FAILED}
    assert is_general == (kind in BUGS_OF_OURS)


@each_error
def test_every_engine_error_has_a_name_for_json(kind: type[EngineError]):
    error = kind.__new__(kind)
    assert error_type(error) not in {"internal_error", "engine_error"}


def test_a_disk_that_is_full_is_no_broken_model(tmp_path):
    with pytest.raises(ModelFileError) as refused, writing(tmp_path):
        raise OSError(28, "No space left on device")
    assert exit_code(refused.value) == ExitCode.STORAGE
    assert exit_code(ModelFileError(tmp_path, "is corrupt")) == ExitCode.MODEL_FILE
