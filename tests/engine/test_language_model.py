import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import engine
from engine.errors import ContextOverflow, EngineClosed, EngineError, InvalidParams
from engine.events import Delta, Done
from engine.finish import FinishCause
from engine.language_model import PARALLEL, LanguageModel, load
from engine.loading import OpenOptions
from engine.models.chat_sampling import chat_sampling
from engine.params import SamplingParams, SequenceParams
from engine.scheduler.request import ScheduledRequest
from engine.scheduler.scheduler import BatchScheduler
from engine.text.answer_text import TextDelta
from engine.text.template import plain_prompt
from tests.engine.models.tiny import write_json, write_tiny

GREEDY = SamplingParams()
OPTIONS = OpenOptions(blas="off", offline=True)
HI = {"role": "user", "content": "Hi"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def model(folder: Path) -> Iterator[LanguageModel]:
    with load(folder, OPTIONS) as model:
        yield model


def open_rows(model: LanguageModel) -> int:
    return len(model._scheduler.stats().slots)


def scheduled(model: LanguageModel, ids: tuple[int, ...], **params) -> list[int]:
    """The tokens that a scheduler of its own gives on the same engine."""
    scheduler = BatchScheduler(model._opened.engine)
    scheduler.submit(ScheduledRequest("alone", SequenceParams(ids, **params)))
    events = []
    while not scheduler.idle:
        events += scheduler.tick()
    assert isinstance(events[-1], Done)
    return [token for event in events if isinstance(event, Delta) for token in event.tokens]


def test_an_answer_is_what_the_scheduler_gives(model):
    ids = model.tokenizer.encode("The sea")
    answer = model.answer(ids, max_tokens=12, sampling=GREEDY)
    assert list(answer.tokens) == scheduled(model, tuple(ids), max_tokens=12)
    assert answer.text == model.tokenizer.decode(answer.tokens)
    assert (answer.finish, answer.usage.completion_tokens) == (FinishCause.LENGTH, 12)


def test_a_string_is_a_user_s_turn(model):
    options = {"max_tokens": 8, "sampling": GREEDY}
    text = model.generate("Hi", **options)
    rendered = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert text == model.generate([HI], **options) == model.generate(rendered, raw=True, **options)


def test_a_system_message_comes_first(model):
    system = {"role": "system", "content": "Be brief."}
    answers = [
        model.generate("Hi", system="Be brief.", max_tokens=8, sampling=GREEDY),
        model.generate([HI], system="Be brief.", max_tokens=8, sampling=GREEDY),
        model.generate([system, HI], max_tokens=8, sampling=GREEDY),
    ]
    assert answers == [answers[0]] * 3
    assert answers[0] != model.generate("Hi", max_tokens=8, sampling=GREEDY)


def test_a_model_without_a_template_gets_a_plain_dialogue(tmp_path):
    folder = write_tiny(tmp_path / "base")
    write_json(folder / "tokenizer_config.json", {"eos_token": "<|im_end|>"})
    with load(folder, OPTIONS) as model:
        plain = plain_prompt([HI]).text
        assert model.generate("Hi", max_tokens=8, sampling=GREEDY) == model.generate(
            plain, raw=True, max_tokens=8, sampling=GREEDY
        )


def test_reasoning_is_split_from_the_answer(tmp_path):
    folder = write_tiny(tmp_path / "thinker")
    template = "{{ messages[-1].content }}<think>{# up to </think> #}"
    write_json(
        folder / "tokenizer_config.json",
        {"eos_token": "<|im_end|>", "chat_template": template},
    )
    with load(folder, OPTIONS) as model:
        options = {"max_tokens": 8, "sampling": GREEDY}
        answer = model.answer("Hi", **options)
        assert (answer.text, answer.reasoning) == ("", model.tokenizer.decode(answer.tokens))
        assert all(delta.is_reasoning for delta in model.stream("Hi", **options))
        raw = model.answer("Hi<think>", raw=True, **options)
        assert (raw.text, raw.reasoning) == (answer.reasoning, "")


def test_a_stream_gives_the_answer_in_deltas(model):
    stream = model.stream("Hi", max_tokens=8, sampling=GREEDY)
    assert stream.answer is None
    deltas = list(stream)
    assert len(deltas) > 1
    assert all(isinstance(delta, TextDelta) for delta in deltas)
    assert stream.answer.text == "".join(delta.text for delta in deltas)
    assert stream.answer.tokens == model.answer("Hi", max_tokens=8, sampling=GREEDY).tokens
    assert list(stream) == []
    assert stream.answer is not None


def test_closing_a_stream_frees_its_row_at_once(model):
    stream = model.stream("Hi", sampling=GREEDY)
    next(stream)
    assert open_rows(model) == 1
    stream.close()
    assert open_rows(model) == 0
    assert list(stream) == []
    assert stream.answer is None


def test_leaving_a_loop_over_a_stream_frees_its_row(model):
    for _ in model.stream("Hi", sampling=GREEDY):
        break
    assert open_rows(model) == 0


def test_streams_that_are_open_together_share_their_steps(model):
    options = {"max_tokens": 8, "sampling": GREEDY}
    alone = [model.generate(prompt, **options) for prompt in ("One", "Two")]
    one, two = (model.stream(prompt, **options) for prompt in ("One", "Two"))
    first = next(one)
    between = next(two)
    assert open_rows(model) == 2
    within = model.generate("Three", **options)
    texts = [first.text + "".join(d.text for d in one), between.text + "".join(d.text for d in two)]
    assert texts == alone
    assert within == model.generate("Three", **options)


def test_a_batch_answers_in_order_however_many_there_are(model):
    prompts = [f"Number {number}" for number in range(PARALLEL + 3)]
    answers = model.batch(prompts, max_tokens=4, sampling=GREEDY)
    alone = [model.answer(prompt, max_tokens=4, sampling=GREEDY) for prompt in prompts]
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in alone]
    assert model.batch([]) == []


def test_a_prompt_that_can_never_run_refuses_its_batch(model):
    with pytest.raises(ContextOverflow):
        model.batch(["Hi", "far too long " * 100], max_tokens=4)
    assert open_rows(model) == 0
    assert model.generate("Hi", max_tokens=2)


def test_an_answer_that_fails_raises_and_frees_the_others(model, monkeypatch):
    opened = model._opened.engine
    check_row, failing = opened.check_row, []

    def check(seq) -> None:
        failing.append(seq)
        if seq == failing[0] and len(failing) > 6:
            raise EngineError("it broke")
        check_row(seq)

    monkeypatch.setattr(opened, "check_row", check)
    with pytest.raises(EngineError, match="it broke"):
        model.batch(["One", "Two"], max_tokens=200, sampling=GREEDY)
    assert open_rows(model) == 0


def test_stop_strings_end_an_answer(model):
    text = model.generate("Hi", max_tokens=20, sampling=GREEDY)
    stop = text[5:7]
    for given in (stop, [stop], ("not there", stop)):
        answer = model.answer("Hi", max_tokens=20, sampling=GREEDY, stop=given)
        assert (answer.text, answer.finish) == (text[: text.index(stop)], "stop_sequence")


def test_the_same_seed_gives_the_same_answer_and_the_default_is_the_chat_s(model):
    answer = model.answer("Hi", max_tokens=8)
    sampling = chat_sampling(model._opened.loaded.generation)
    again = SamplingParams(sampling.temperature, top_p=sampling.top_p, seed=answer.seed)
    assert model.answer("Hi", max_tokens=8, sampling=again).tokens == answer.tokens


def test_log_probabilities_come_one_a_token(model):
    answer = model.answer("Hi", max_tokens=5, sampling=SamplingParams(logprobs=2))
    assert [one.chosen.token for one in answer.logprobs] == list(answer.tokens)
    assert model.answer("Hi", max_tokens=5).logprobs == ()


def test_prompt_lookup_changes_no_text(model):
    prompt = "one two three one two three one two"
    plain = model.answer(prompt, max_tokens=40, sampling=GREEDY)
    drafted = model.answer(prompt, max_tokens=40, sampling=GREEDY, prompt_lookup=True)
    assert drafted.text == plain.text
    assert plain.timings.draft_rounds == 0


def test_prompt_lookup_that_cannot_be_is_refused(model):
    mirostat = SamplingParams(temperature=0.7, mirostat=2)
    with pytest.raises(InvalidParams, match="mirostat") as refused:
        model.generate("Hi", max_tokens=4, sampling=mirostat, prompt_lookup=True)
    assert refused.value.field == "prompt_lookup"
    assert open_rows(model) == 0


@pytest.mark.parametrize(
    ("prompt", "options", "field"),
    [
        ("", {}, "prompt"),
        ("  ", {}, "prompt"),
        ([], {}, "prompt"),
        (b"Hi", {}, "prompt"),
        (7, {}, "prompt"),
        ([HI, 7], {}, "messages[1]"),
        ([{"role": "user"}], {}, "messages[0].content"),
        ([HI], {"raw": True}, "raw"),
        ("Hi", {"raw": True, "system": "Be brief."}, "system"),
        ([1, 2], {"system": "Be brief."}, "system"),
        ([{"role": "system", "content": "Be kind."}, HI], {"system": "Be brief."}, "system"),
        ("Hi", {"max_tokens": -1}, "max_tokens"),
        ([1, 2, 10**6], {}, "prompt"),
    ],
)
def test_a_bad_argument_is_named(model, prompt, options, field):
    with pytest.raises(InvalidParams) as refused:
        model.generate(prompt, **options)
    assert refused.value.field == field


def test_an_argument_that_does_not_exist_is_a_type_error(model):
    with pytest.raises(TypeError, match="max_token'"):
        model.generate("Hi", max_token=3)


def test_a_closed_model_says_so(folder):
    model = load(folder, OPTIONS)
    stream = model.stream("Hi", sampling=GREEDY)
    next(stream)
    model.close()
    model.close()
    with pytest.raises(EngineClosed, match="closed"):
        list(stream)
    with pytest.raises(EngineClosed, match="closed"):
        model.generate("Hi")
    with pytest.raises(EngineClosed, match="closed"):
        model.stream("Hi")


def test_another_thread_is_refused(model):
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            model.generate("Hi")
        except EngineError as error:
            raised.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert "thread" in str(raised[0])


def test_measured_widths_are_kept_for_the_next_load(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("MLXCEL_HOME", str(tmp_path))
    options = OpenOptions(blas="off", offline=True)
    for is_first in (True, False):
        with load(folder, options) as model:
            assert (model._opened.width_costs is None) == is_first
            model.generate("one two one two", max_tokens=60, sampling=GREEDY, prompt_lookup=True)
    assert list(tmp_path.rglob("*.json"))


def test_the_package_names_what_scripts_use():
    assert engine.load is load
    assert engine.LanguageModel is LanguageModel
    assert engine.SamplingParams is SamplingParams
    assert engine.TextDelta is TextDelta
    assert engine.EngineError is EngineError
    assert engine.OpenOptions is OpenOptions
    assert {"Answer", "load"} <= set(dir(engine))
    with pytest.raises(AttributeError, match="nothing_of_this_name"):
        _ = engine.nothing_of_this_name
