"""One line that says how far a download, a conversion, a load or a prefill is."""

from engine.events import PrefillProgress
from engine.models.progress import Progress

_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def progress_text(progress: Progress) -> str:
    """``downloading the starter: 45 % of 89.1 MiB``; without a total, what is done."""
    if progress.total:
        percent = min(100, 100 * progress.done // progress.total)
        # A total this small counts steps, not bytes.
        size = f" of {bytes_text(progress.total)}" if progress.total >= 2**10 else ""
        return f"{progress.stage}: {percent} %{size}"
    if progress.done:
        return f"{progress.stage}: {bytes_text(progress.done)}"
    return progress.stage


def prefill_text(progress: PrefillProgress) -> str:
    """``reading the prompt: 512 of 2048 tokens``."""
    return f"reading the prompt: {progress.done_tokens} of {progress.prompt_tokens} tokens"


def bytes_text(count: int) -> str:
    """``89.1 MiB``; below a KiB, bytes."""
    for size, unit in _UNITS:
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"
