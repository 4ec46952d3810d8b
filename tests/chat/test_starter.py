"""Chats with the starter model: each turn reads what is new, and writes what a cold run writes."""

from dataclasses import replace

import pytest

from mlxcel_cli.answers import Done, ModelRequest, Piece
from mlxcel_cli.chat.knobs import Knobs
from mlxcel_cli.chat.session import ChatSession
from mlxcel_cli.config import load_settings
from mlxcel_cli.engine_backend import EngineBackend
from mlxcel_cli.options import LengthOptions
from mlxcel_cli.sampling_options import SamplingOptions

pytestmark = pytest.mark.starter

GLUE_TOKENS = 11 + 1
"""What the starter's template puts around a turn (``<|im_end|>`` to ``assistant``, eleven tokens
that no cache can spare), and the answer's newest token, which has no KV yet."""


@pytest.fixture(scope="module")
def backend(starter_folder, tmp_path_factory):
    """Another backend on the same model would load it again; chats here differ in their words."""
    settings = load_settings({"MLXCEL_HOME": str(tmp_path_factory.mktemp("home"))}, command="chat")
    backend = EngineBackend()
    backend.load(ModelRequest(name=str(starter_folder), settings=settings), lambda _: None)
    yield backend
    backend.unload()


class Talk:
    """A chat whose every answer is held against a cold run of the same prompt."""

    def __init__(self, backend: EngineBackend, *, lookup: bool = False) -> None:
        self.backend = backend
        knobs = Knobs(
            sampling=SamplingOptions(temperature=0.0), length=LengthOptions(max_tokens=12)
        )
        knobs.switch_lookup(on=lookup)
        self.session = ChatSession(None, knobs)

    def answer(self, *, stops_after: int | None = None, judged: bool = True) -> None:
        request = self.session.request()
        events = self.backend.answer(request)
        for event in events:
            self.session.take(event)
            if isinstance(event, Piece) and event.tokens == stops_after:
                break
        events.close()
        self.session.stop()
        if judged and stops_after is None:
            *_, cold = self.backend.answer(replace(request, reuses_kv=False))
            assert isinstance(cold, Done)
            assert cold.text == self.session.chat.last_answer.text

    def ask(self, text: str, **values) -> None:
        self.session.ask(text)
        self.answer(**values)

    @property
    def read_tokens(self) -> int:
        return self.session.chat.last_answer.numbers.evaluated_tokens

    def tokens(self, text: str) -> int:
        return len(self.backend._ready.loaded.tokenizer.encode(text))


@pytest.mark.parametrize("lookup", [False, True], ids=["plain", "prompt lookup"])
def test_each_turn_reads_its_new_tokens_and_the_template_s(backend, lookup):
    talk = Talk(backend, lookup=lookup)
    talk.ask("Name three large cities in Europe.")
    for text in ("And which is the largest?", "What river runs there?"):
        talk.ask(text)
        assert talk.read_tokens <= talk.tokens(text) + GLUE_TOKENS


def test_a_turn_after_a_stop_reads_its_new_tokens(backend):
    talk = Talk(backend)
    talk.ask("Tell me a long story about a whale.", stops_after=5)
    talk.ask("Shorter, please.")
    assert talk.read_tokens <= talk.tokens("Shorter, please.") + GLUE_TOKENS


def test_another_answer_to_the_same_question_reads_one_token(backend):
    talk = Talk(backend)
    talk.ask("Name a color of the rainbow.")
    talk.answer()
    assert talk.read_tokens == 1


def test_an_edited_turn_reads_the_edit(backend):
    talk = Talk(backend)
    talk.ask("What do bees eat?")
    talk.ask("And wasps?")
    assert talk.session.take_back() == "And wasps?"
    talk.ask("And hornets, in the summer?")
    assert talk.read_tokens <= talk.tokens("And hornets, in the summer?") + GLUE_TOKENS


def test_an_answer_that_goes_on_reads_its_end(backend):
    talk = Talk(backend)
    talk.ask("Count from one to thirty in words.", judged=False)
    assert talk.session.can_continue
    before = talk.session.chat.last_answer.text
    for event in backend.answer(talk.session.request(continues=True)):
        talk.session.take(event)
    assert talk.session.chat.last_answer.text.startswith(before)
    assert talk.read_tokens <= GLUE_TOKENS
