"""What ``mlxcel parity`` is to compare, as plain values that cross to the engine thread."""

from dataclasses import dataclass

from mlxcel_cli.answers import ModelRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityPlan:
    """What is compared, checked before a model is loaded."""

    model: ModelRequest
    prompts: tuple[str, ...]
    raw: bool
    max_tokens: int
    seed: int
    arms: tuple[str, ...]
    """By name; empty: all there are."""
    cases: tuple[str, ...]
    batch: int
    gap: float | None
    teacher_forced: bool
    chunk_tokens: int
