"""The token that ends a turn, where no file of a model names it."""

from pathlib import Path

from engine.models.checkpoint import read_json
from engine.models.load import load
from engine.models.turn_end import turn_end
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer
from tests.engine.models.tiny import EOS_ID, write_json, write_tiny

END_OF_DOCUMENT = 256


def without_turn_end(folder: Path) -> Path:
    for name in ("config.json", "tokenizer_config.json"):
        content = read_json(folder / name)
        key = "eos_token_id" if name == "config.json" else "eos_token"
        content[key] = END_OF_DOCUMENT if name == "config.json" else "<|endoftext|>"
        write_json(folder / name, content)
    return folder


def test_the_token_behind_an_answer_ends_it_where_files_name_the_documents_end_only(
    tmp_path: Path,
):
    assert load(without_turn_end(write_tiny(tmp_path))).eos_ids == {END_OF_DOCUMENT, EOS_ID}


def test_a_model_whose_files_name_it_gets_no_other(tmp_path: Path):
    loaded = load(write_tiny(tmp_path))
    assert EOS_ID in loaded.eos_ids
    assert loaded.template is not None
    assert turn_end(loaded.template, loaded.tokenizer, loaded.eos_ids) is None


def end_of(source: str, folder: Path) -> int | None:
    tokenizer = Tokenizer.from_folder(write_tiny(folder))
    return turn_end(ChatTemplate(source), tokenizer, {END_OF_DOCUMENT})


def test_white_space_before_it_does_not_matter(tmp_path: Path):
    source = "{% for m in messages %}{{ m.content }} \n<|im_end|>{% endfor %}"
    assert end_of(source, tmp_path) == EOS_ID


def test_a_template_without_a_mark_there_names_none(tmp_path: Path):
    assert end_of("{% for m in messages %}{{ m.content }}\n{% endfor %}", tmp_path) is None


def test_a_template_that_refuses_the_conversation_names_none(tmp_path: Path):
    assert end_of("{{ raise_exception('no') }}", tmp_path) is None


def test_a_template_that_prints_no_answer_names_none(tmp_path: Path):
    assert end_of("<|im_end|>", tmp_path) is None
