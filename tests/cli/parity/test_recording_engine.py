"""What rows wrote outlives them."""

import pytest

from engine.models.load import load
from engine.params import SequenceParams
from mlxcel_cli.parity.comparison import ParityRequest, parity_cases
from mlxcel_cli.parity.engine_variants import RecordingEngine
from tests.engine.models.tiny import write_tiny
from tests.engine.rigs import prefill


def test_the_answer_of_a_closed_row_is_kept_without_its_prompt(tmp_path):
    request = ParityRequest((40, 41, 42), parity_cases(1)["greedy"], 8, chunk_tokens=16, batch=1)
    engine = RecordingEngine(load(write_tiny(tmp_path / "tiny")), request)
    first, second = (engine.open(SequenceParams((40, 41, one), max_tokens=8)) for one in (42, 43))
    for seq in (first, second):
        prefill(engine, seq)
    token = engine.step([first])[0].token
    assert not engine.is_closed(first)
    with pytest.raises(KeyError):
        engine.answer_to(first)
    engine.close(second)
    engine.close(first)
    assert engine.is_closed(first)
    assert engine.answer_to(first)[-1] == token
    assert (len(engine.answer_to(first)), len(engine.answer_to(second))) == (2, 1)
    assert engine.last_answer == engine.answer_to(first)
