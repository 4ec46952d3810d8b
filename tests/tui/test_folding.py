"""A long message is folded on the screen, and literal as ever."""

import pytest

from mlxcel_cli.tui.transcript import UserTurn, folded
from tests.tui.rigs import ScriptedBackend, ask, ready, screen_lines, texts


def test_a_long_message_is_folded_and_a_key_or_a_click_opens_it(chat):
    pasted = "\n".join(f"[b]line {n}[/b]" for n in range(5000))

    async def steps(pilot):
        await ready(pilot)
        await ask(pilot, pasted)
        await ask(pilot, "short")
        (turn, other) = pilot.app.query(UserTurn)
        assert "[b]line 0[/b]" in str(turn.content)
        assert "… 4,988 more lines · F3 or a click" in screen_lines(pilot.app)
        assert (turn.size.height, other.size.height) == (13, 1)
        await pilot.press("f3")
        await pilot.pause()
        assert turn.size.height == 5000
        await pilot.press("end")
        await pilot.pause()
        assert "ok" in screen_lines(pilot.app)
        await pilot.press("f3")
        await pilot.pause()
        assert turn.size.height == 13
        pilot.app.conversation.transcript.scroll_home(animate=False)
        await pilot.pause()
        await pilot.click(turn)
        await pilot.pause()
        assert turn.size.height == 5000

    app = chat(ScriptedBackend(), steps)
    assert texts(app)[0] == pasted


@pytest.mark.parametrize(
    ("text", "begins", "says"),
    [
        ("x\n" * 23 + "x", "", None),
        ("x\n" * 24 + "x", "x\nx\n", "13 more lines"),
        ("x" * 4000, "", None),
        ("x" * 5000, "x" * 2000, "3,000 more characters"),
        ("y" * 5000 + "\n" * 30, "y" * 2000, "19 more lines"),
    ],
)
def test_what_is_folded_is_long(text, begins, says):
    shown = folded(text, "click")
    assert shown.startswith(begins)
    assert says in shown if says else shown == ""
