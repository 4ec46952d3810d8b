"""The text of a prompt: what of it a user wrote, and whether the model's reasoning is open."""

from dataclasses import dataclass

from engine.text.answer_text import ThinkingMarks


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
    thinking_marks: tuple[ThinkingMarks, ...] = ()
    """Those of the model's chat template; none for a raw prompt, whose answer is not split."""

    is_raw: bool = False
    """Whether it is a text to be continued; otherwise the answer is a turn of its own."""

    @property
    def continues_text(self) -> bool:
        """Whether the answer continues text: a raw prompt, or a turn that has begun."""
        start = self.prefill_start
        if start is None:
            return self.is_raw
        return start < len(self.text)

    @property
    def continues_thinking(self) -> bool:
        """Whether the prompt holds some of the reasoning that the answer continues."""
        end = self.text.rstrip()
        return self.opens_thinking and not any(
            end.endswith(marks.open) for marks in self.thinking_marks
        )

    @property
    def opens_thinking(self) -> bool:
        """Whether the answer to this prompt begins inside the model's reasoning."""
        head, prefill = self.text[: self.prefill_start], ""
        if self.prefill_start is not None:
            prefill = self.text[self.prefill_start :]
        for marks in self.thinking_marks:
            begun, ended = prefill.rfind(marks.open), prefill.rfind(marks.close)
            if begun != ended:
                return begun > ended
        return any(head.rstrip().endswith(marks.open) for marks in self.thinking_marks)
