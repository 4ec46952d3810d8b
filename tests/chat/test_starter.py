"""Chats with the starter model: each turn reads what is new, and writes what a cold run writes."""

from dataclasses import replace

import pytest

from engine.text.answer_text import TextDelta
from mlxcel_cli.answers import AnswerDone, ModelRequest
from mlxcel_cli.chat.session import ChatSession
from mlxcel_cli.chat.settings import ChatSettings
from mlxcel_cli.config import load_settings
from mlxcel_cli.engine_backend import EngineBackend
from mlxcel_cli.options import LengthOptions
from mlxcel_cli.sampling_options import SamplingOptions

pytestmark = pytest.mark.starter

TEMPLATE_TOKENS = 11
"""The template's own around a user's words, as new as they are: ``<|im_end|>``, a line end,
``<|im_start|>user`` and a line end before them, as much with ``assistant`` after them."""

AGAIN_TOKENS = 1
"""Most tokens that are read though they were read or written before: the newest token of a stopped
answer has no KV yet, and of a prompt that is known the last token is forwarded once more."""


@pytest.fixture(scope="module")
def backend(starter_folder, tmp_path_factory):
    """Another backend on the same model would load it again; chats here differ in their words."""
    settings = load_settings({"MLXCEL_HOME": str(tmp_path_factory.mktemp("home"))}, command="chat")
    backend = EngineBackend()
    backend.load(ModelRequest(name=str(starter_folder), settings=settings), lambda _: None)
    yield backend
    backend.unload()


class Talk:
    """A chat whose every answer is compared with a cold run of the same prompt."""

    def __init__(self, backend: EngineBackend, *, lookup: bool = False) -> None:
        self.backend = backend
        settings = ChatSettings(
            sampling=SamplingOptions(temperature=0.0), length=LengthOptions(max_tokens=12)
        )
        settings.switch_lookup(on=lookup)
        self.session = ChatSession(None, settings)

    def answer(self, *, stops_after: int | None = None, compared: bool = True) -> None:
        request = self.session.request()
        events = self.backend.answer(request)
        for event in events:
            self.session.take(event)
            if isinstance(event, TextDelta) and event.tokens == stops_after:
                break
        events.close()
        self.session.stop()
        if compared and stops_after is None:
            *_, cold = self.backend.answer(replace(request, reuses_kv=False))
            assert isinstance(cold, AnswerDone)
            assert cold.text == self.session.chat.last_answer.text

    def ask(self, text: str, **values) -> None:
        self.session.ask(text)
        self.answer(**values)

    @property
    def read_tokens(self) -> int:
        return self.session.chat.last_answer.numbers.evaluated_tokens

    def tokens(self, text: str) -> int:
        return len(self.backend.generator.ready.loaded.tokenizer.encode(text))

    def compare(self, text: str) -> None:
        """The turn read its own tokens, and next to nothing again."""
        new = self.tokens(text) + TEMPLATE_TOKENS
        assert self.session.chat.new_tokens[-1] == new
        assert self.read_tokens <= new + AGAIN_TOKENS


def test_the_first_turn_reads_all_of_its_prompt(backend):
    talk = Talk(backend)
    talk.ask("Which animals sleep through the winter?")
    (new,) = talk.session.chat.new_tokens
    assert new == talk.session.chat.last_answer.numbers.prompt_tokens
    # What chats share, the template's system text, is known from the second one on.
    assert talk.read_tokens <= new


@pytest.mark.parametrize("lookup", [False, True], ids=["plain", "prompt lookup"])
def test_each_turn_reads_its_new_tokens(backend, lookup):
    talk = Talk(backend, lookup=lookup)
    talk.ask("Name three large cities in Europe.")
    for text in ("And which is the largest?", "What river runs there?"):
        talk.ask(text)
        talk.compare(text)


def test_a_turn_after_an_answer_that_came_to_its_end_reads_its_new_tokens(backend):
    talk = Talk(backend)
    talk.session.settings.set("max-tokens", "80")
    talk.ask("What is 2 + 2? Answer with one word.", compared=False)
    assert talk.session.chat.last_answer.finish == "eos"
    talk.ask("And 3 + 3?", compared=False)
    talk.compare("And 3 + 3?")


def test_a_turn_after_a_stop_reads_its_new_tokens(backend):
    talk = Talk(backend)
    talk.ask("Tell me a long story about a whale.", stops_after=5)
    talk.ask("Shorter, please.")
    talk.compare("Shorter, please.")


def test_another_answer_to_the_same_question_reads_one_token(backend):
    talk = Talk(backend)
    talk.ask("Name a color of the rainbow.")
    talk.answer()
    assert talk.read_tokens == 1
    talk.ask("And another one?")
    talk.compare("And another one?")


def test_an_edited_turn_reads_the_edit(backend):
    talk = Talk(backend)
    talk.ask("What do bees eat?")
    talk.ask("And wasps?")
    assert talk.session.take_back() == "And wasps?"
    talk.ask("And hornets, in the summer?")
    talk.compare("And hornets, in the summer?")


def test_an_answer_that_goes_on_reads_its_end(backend):
    talk = Talk(backend)
    talk.ask("Count from one to thirty in words.", compared=False)
    assert talk.session.can_continue
    before = talk.session.chat.last_answer.text
    for event in backend.answer(talk.session.request(continues=True)):
        talk.session.take(event)
    assert talk.session.chat.last_answer.text.startswith(before)
    assert talk.read_tokens <= 8
