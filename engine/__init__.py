"""The inference engine: MLX and plain Python, no terminal, network or event loop.

The names below are what scripts use, documented in ``docs/python.md``; everything else may change.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine.errors import EngineError as EngineError
    from engine.language_model import Answer as Answer
    from engine.language_model import LanguageModel as LanguageModel
    from engine.language_model import load as load
    from engine.loading import OpenOptions as OpenOptions
    from engine.params import SamplingParams as SamplingParams
    from engine.text.answer_text import TextDelta as TextDelta

_HOMES = {
    "Answer": "engine.language_model",
    "EngineError": "engine.errors",
    "LanguageModel": "engine.language_model",
    "OpenOptions": "engine.loading",
    "SamplingParams": "engine.params",
    "TextDelta": "engine.text.answer_text",
    "load": "engine.language_model",
}


def __getattr__(name: str) -> object:
    """A public name, imported when it is first used: MLX takes long."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names."""
    return sorted({*globals(), *_HOMES})
