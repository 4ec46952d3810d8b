"""What is loaded after a slip in the name of a model."""

from engine.errors import ModelNotFound
from tests.tui.rigs import ScriptedBackend, ask, notices, ready, say, screen_lines, until


def test_a_slip_in_a_model_s_name_leaves_the_one_that_is_loaded(chat):
    backend = ScriptedBackend("Hello")

    async def steps(pilot):
        await ready(pilot)
        name = pilot.app.session.model.name
        backend.load_script = [ModelNotFound("nope", "try mlxcel models list")]
        await say(pilot, "/model nope")
        await until(pilot, lambda: len(notices(pilot.app)) > 1)
        assert "try mlxcel models list" in notices(pilot.app)[-2]
        assert f"continues with {name}" in notices(pilot.app)[-1]
        await ask(pilot, "hi")
        assert "Hello" in screen_lines(pilot.app)

    chat(backend, steps)
