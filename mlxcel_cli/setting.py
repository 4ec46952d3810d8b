"""How a setting of the server is classed: when it may change, and what it is by default."""

from dataclasses import dataclass
from enum import StrEnum


class Change(StrEnum):
    """When a setting may change."""

    START_UP = "start-up"
    """It is used while the server starts."""
    READ_ONLY = "read-only"
    """It is in force while the server runs, and stays."""
    CHANGEABLE = "changeable"
    """``POST /v1/settings`` changes it at once."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What the table says of an option beside its spelling and help."""

    change: Change
    default: object
    is_secret: bool = False
    """Whether pages say only that it is set."""
