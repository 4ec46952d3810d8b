"""What a TAB in a prompt may complete: commands and attached paths."""

from mlxcel_cli.chat.attachments import complete_path
from mlxcel_cli.chat.slash import complete_command


def completions(before: str) -> tuple[str, list[str]]:
    """The word before the cursor that can be completed, and what it may become."""
    if before.startswith("/") and " " not in before and "\n" not in before:
        return before, complete_command(before)
    word = before.rsplit(maxsplit=1)[-1] if before and not before[-1].isspace() else ""
    if word.startswith("@"):
        return word, [f"@{path}" for path in complete_path(word[1:])]
    return "", []


def completed(before: str) -> str:
    """What a TAB adds: as much as all candidates share, a space after the only one."""
    word, found = completions(before)
    if not found:
        return ""
    first, last = min(found), max(found)
    same = next(
        (i for i, pair in enumerate(zip(first, last, strict=False)) if len({*pair}) > 1), len(first)
    )
    added = first[len(word) : same]
    whole = len(found) == 1 and not found[0].endswith("/")
    return added + " " if whole else added
