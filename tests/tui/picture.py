"""Makes the README's picture of the chat, from the real screen: ``python -m tests.tui.picture``.

The answer and its figures are written down here, so that the picture is the same on every machine.
"""

import asyncio
import re
import tempfile
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

from engine.text.answer_text import TextDelta
from mlxcel_cli.answers import ModelReport
from tests.tui.rigs import TIMINGS, ScriptedBackend, app_of, ask, done, ready, start_of

PICTURE = Path(__file__).parents[2] / "docs" / "chat.svg"
SIZE = (100, 24)

FILE = "shapes.py"
CODE = "def area(w, h):\n    return w * h\n"
QUESTION = f"Add type hints to @{FILE} and say what changed."
ANSWER = """\
Here is `shapes.py` with type hints:

```python
def area(w: float, h: float) -> float:
    return w * h
```

- Both sides are **floats**, and so is the area.
- What it computes has not changed.
"""
REPORT = ModelReport(
    "SmolLM2-135M-Instruct", Path("model"), 0.5, has_template=True, device="cpu",
    context_tokens=8192,
)  # fmt: skip
DRAFTED = replace(
    TIMINGS, predicted_n=61, predicted_s=1.0, draft_n=36, draft_n_accepted=30, draft_rounds=12
)


def picture() -> str:
    """The picture as SVG; it fetches nothing."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        Path(FILE).write_text(CODE, encoding="utf-8")
        environ = {"MLXCEL_HOME": folder, "XDG_CONFIG_HOME": folder}
        svg = asyncio.run(_drawn(environ))
    # The fonts would come from a server; without them a reader's own are taken.
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL)
    return re.sub(r"[ \t]+$", "", svg, flags=re.MULTILINE).strip() + "\n"


def words(svg: str) -> list[str]:
    """What a picture says, line by line; not where and in which colours."""
    return [text.replace("&#160;", " ").strip() for text in re.findall(r">([^<>]+)</text>", svg)]


async def _drawn(environ: dict[str, str]) -> str:
    backend = ScriptedBackend([TextDelta(ANSWER, tokens=61), done(ANSWER, timings=DRAFTED)])
    backend.report = REPORT
    app = app_of(start_of(environ, save=False), backend)
    async with app.run_test(size=SIZE) as pilot:
        app.prompt.cursor_blink = False
        await ready(pilot)
        await ask(pilot, QUESTION)
        await pilot.press("f2")
        await pilot.pause(0.2)
        return app.export_screenshot(title="mlxcel chat")


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
