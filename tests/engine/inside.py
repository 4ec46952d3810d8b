"""What tests look at and change inside an engine: the one place that knows where it is."""

from typing import Any

from engine.engine import Engine
from engine.kv.storage import Storage
from engine.models.load import LoadedModel
from engine.outcome import SeqId
from engine.rows import Row, RowTable
from engine.steps import Steps


def table_of(engine: Engine) -> RowTable:
    return engine._table


def rows_of(engine: Engine) -> dict[SeqId, Row]:
    """The open rows."""
    return table_of(engine).rows


def row_of(engine: Engine, seq: SeqId) -> Row:
    return table_of(engine).row(seq)


def steps_of(engine: Engine) -> Steps:
    return engine._steps


def storage_of(engine: Engine) -> Storage:
    return engine.choice.storage


def layers_of(engine: Engine) -> list[Any]:
    """The storage's layers, as many as the model has caches."""
    return storage_of(engine)._layers


def forwards_of(engine: Engine) -> Any:
    return engine._forwards


def inner_model(engine: Engine) -> Any:
    return forwards_of(engine)._model


def put_model(engine: Engine, model: Any) -> None:
    """Run the forwards of an engine through ``model`` from now on."""
    forwards_of(engine)._model = model


def build_steps_first(engine: Engine, holds: bool) -> None:
    """Whether a step is only built by ``submit`` and started by ``flush``, as on a CPU."""
    steps_of(engine)._holds = holds


def loaded_of(engine: Engine) -> LoadedModel:
    return table_of(engine)._loaded
