"""The text of a prompt, and which parts of it a user wrote that look like special tokens."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt as text; ``Tokenizer.encode_rendered`` turns it into ids.

    Special tokens of the text are the template's own and become ids, but for those that touch
    a literal span: those are a user's words and stay words (llama.cpp#26309).
    """

    text: str
    literals: tuple[tuple[int, int], ...] = ()
    """Spans [start, stop) of ``text``, in order."""
    prefill_start: int | None = None
    """Where the start of the answer, given by the caller, begins; None: there is none."""
    from_template: bool = True
    """False: the model has no chat template, and looks like a base model."""
