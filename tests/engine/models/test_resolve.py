"""Tests of engine/models/resolve.py."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import ModelError, ModelFileError, ModelNotFound
from engine.models import pull as pull_module
from engine.models import resolve as resolve_module
from engine.models.catalog import STARTER, ModelKind, conversion_folder
from engine.models.gguf import convert
from engine.models.hub_name import HubName
from engine.models.resolve import ModelPlaces, find_local, resolve
from engine.models.starter import STARTER_NAME, starter_folder
from tests.engine.models.model_folders import add_hub_gguf, add_hub_model, fill_folder


@pytest.fixture(autouse=True)
def nothing_is_fetched_or_converted(monkeypatch):
    """What would fetch or convert says so instead; tests that want it put their own here."""

    def unwanted(*_, **__):
        raise AssertionError("no network here")

    def convert_gguf(source, target, **_):
        return (f"{source.name} to {target.name}",)

    monkeypatch.setattr(pull_module, "pull", unwanted)
    monkeypatch.setattr(resolve_module, "ensure_starter", lambda home, **_: starter_folder(home))
    monkeypatch.setattr(convert, "convert_gguf", convert_gguf)


@pytest.fixture
def places(tmp_path: Path, monkeypatch) -> ModelPlaces:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return ModelPlaces(home=tmp_path / "home", hub_cache=tmp_path / "hub")


def test_a_folder_is_itself(places, tmp_path):
    folder = fill_folder(tmp_path / "my-model")
    found = resolve(str(folder), places)
    assert (found.folder, found.name, found.kind) == (folder, "my-model", ModelKind.FOLDER)


def test_a_folder_below_the_current_one_needs_no_dot(places):
    fill_folder(Path("models/mine"))
    assert resolve("models/mine", places).folder == Path("models/mine")


def test_the_home_sign_is_expanded(places, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = fill_folder(tmp_path / "m")
    assert resolve("~/m", places).folder == folder


def test_no_name_is_the_default_else_the_starter(places):
    assert resolve(None, places).kind is ModelKind.STARTER
    snapshot = add_hub_model(places, "owner/name")
    assert resolve(None, replace(places, default="owner/name")).folder == snapshot


def test_an_alias_is_replaced_once_so_that_it_may_have_the_name_of_another(places):
    snapshot = add_hub_model(places, "owner/big")
    aliases = {"small": "big", "big": "small"}
    assert resolve("small", replace(places, aliases=aliases)).folder == snapshot


@pytest.mark.parametrize("name", [STARTER, STARTER_NAME, STARTER_NAME.lower()])
def test_the_starter_goes_by_its_names(places, name):
    found = resolve(name, places)
    assert (found.folder, found.name) == (starter_folder(places.home), STARTER)


def test_the_starter_means_the_same_in_every_working_folder(places):
    fill_folder(Path(STARTER))
    assert resolve(None, places).kind is ModelKind.STARTER
    assert resolve(STARTER, places).folder == starter_folder(places.home)
    assert resolve(f"./{STARTER}", places).folder == Path(STARTER)


@pytest.mark.parametrize("file", [STARTER, "qwen"])
def test_a_file_that_happens_to_have_a_models_name_hides_nothing(places, file):
    add_hub_model(places, "owner/qwen")
    Path(file).write_text("notes")
    assert resolve(file, places).name.endswith(file)


@pytest.mark.parametrize("name", ["notes.txt", "./notes.txt", "../here/notes.txt"])
def test_a_file_that_is_no_model_is_refused_when_nothing_else_has_its_name(places, name):
    Path("notes.txt").write_text("notes")
    with pytest.raises(ModelFileError, match="is no model"):
        resolve(name, places)


def test_a_gguf_file_with_the_longest_of_names_can_be_converted(places):
    file = Path("ü" * 125 + ".gguf")
    file.write_bytes(b"GGUF")
    folder = conversion_folder(file, places)
    marks = len(f"..making-{2**22}-old")
    assert len(folder.name.encode()) + marks < 256
    assert folder.name.startswith("üü")
    assert folder != conversion_folder(Path("ü" * 124 + "a.gguf"), places)


def test_a_name_too_long_for_a_file_is_a_name_like_any_other(places):
    with pytest.raises(ModelNotFound):
        resolve("n" * 5000, places)


def test_an_alias_stands_for_what_it_names(places):
    snapshot = add_hub_model(places, "owner/name")
    assert resolve("small", replace(places, aliases={"small": "owner/name"})).folder == snapshot


def test_a_hub_id_that_is_here_is_never_asked_of_the_hub(places):
    snapshot = add_hub_model(places, "owner/name")
    found = resolve("owner/name", places, allow_pull=True)
    assert (found.folder, found.kind) == (snapshot, ModelKind.HUB)


@pytest.mark.parametrize("name", ["Qwen3-0.6B-4bit", "qwen3-0.6b-4bit", "QWEN3-0.6B-4BIT"])
def test_a_bare_name_is_enough_where_one_model_has_it(places, name):
    snapshot = add_hub_model(places, "mlx-community/Qwen3-0.6B-4bit")
    assert resolve(name, places).folder == snapshot


def test_a_bare_name_that_fits_several_lists_them(places):
    add_hub_model(places, "a/model")
    add_hub_model(places, "b/model")
    with pytest.raises(ModelNotFound, match="a/model, b/model"):
        resolve("model", places)


def test_a_bare_name_that_fits_none_says_what_to_pull(places):
    with pytest.raises(ModelNotFound) as caught:
        resolve("Qwen3-0.6B-4bit", places)
    assert "mlxcel models pull mlx-community/Qwen3-0.6B-4bit" in caught.value.hint


def test_a_typing_slip_is_answered_with_the_name_that_is_here(places):
    add_hub_model(places, "mlx-community/Qwen3-0.6B-4bit")
    with pytest.raises(ModelNotFound, match=r"did you mean mlx-community/Qwen3-0\.6B-4bit"):
        resolve("Qwen3-0.6-4bit", places)


def test_a_slip_in_an_alias_is_answered_with_the_alias(places):
    with pytest.raises(ModelNotFound, match="did you mean small-talk"):
        resolve("small-tlak", replace(places, aliases={"small-talk": "owner/name"}))


def test_a_hub_id_that_is_not_here_says_what_to_type(places):
    with pytest.raises(ModelNotFound) as caught:
        resolve("owner/name", places)
    assert caught.value.hint == "to fetch it, type: mlxcel models pull owner/name"


def test_offline_no_hub_is_asked_even_where_pulling_is_allowed(places):
    with pytest.raises(ModelNotFound, match="HF_HUB_OFFLINE"):
        resolve("owner/name", places, allow_pull=True, offline=True)


def test_offline_the_starter_is_not_fetched_either_but_used_where_it_is(places, monkeypatch):
    monkeypatch.setattr(resolve_module, "ensure_starter", lambda home, **_: starter_folder(home))
    with pytest.raises(ModelNotFound, match="HF_HUB_OFFLINE"):
        resolve("starter", places, allow_pull=True, offline=True)
    folder = starter_folder(places.home)
    folder.mkdir(parents=True)
    assert resolve(None, places, offline=True).folder == folder


def test_a_hub_id_that_is_not_here_is_pulled_where_that_is_allowed(places, monkeypatch):
    def pull(name, hub_cache, **_):
        assert (name, hub_cache) == (HubName("owner", "name"), places.hub_cache)
        add_hub_model(places, "owner/name")

    monkeypatch.setattr(pull_module, "pull", pull)
    found = resolve("owner/name", places, allow_pull=True)
    assert (found.name, found.kind) == ("owner/name", ModelKind.HUB)


def test_a_gguf_file_is_converted_into_the_home(places, tmp_path):
    file = tmp_path / "m-Q4_0.gguf"
    file.write_bytes(b"GGUF")
    found = resolve(str(file), places)
    assert (found.name, found.kind) == ("m-Q4_0", ModelKind.GGUF)
    assert found.folder == conversion_folder(file, places)
    assert found.notes == (f"m-Q4_0.gguf to {found.folder.name}",)


def test_two_gguf_files_of_one_name_do_not_share_a_folder(places, tmp_path):
    folders = set()
    for parent in ("a", "b"):
        (tmp_path / parent).mkdir()
        file = tmp_path / parent / "m.gguf"
        file.write_bytes(b"GGUF")
        folders.add(resolve(str(file), places).folder)
    assert len(folders) == 2


def test_a_folder_with_one_gguf_file_is_that_file(places, tmp_path):
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "m.gguf").write_bytes(b"GGUF")
    assert resolve(str(tmp_path / "g"), places).name == "m"


def test_a_folder_with_several_gguf_files_names_them(places, tmp_path):
    (tmp_path / "g").mkdir()
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / "g" / name).write_bytes(b"GGUF")
    with pytest.raises(ModelFileError, match=r"a\.gguf, b\.gguf"):
        resolve(str(tmp_path / "g"), places)


@pytest.mark.parametrize("name", ["owner/name:Q8_0", "owner/name:m-q8_0.gguf"])
def test_a_gguf_file_of_a_repository_is_named_by_file_or_quantization(places, name):
    add_hub_gguf(places, "owner/name", "m-Q4_0.gguf", "m-Q8_0.gguf")
    assert resolve(name, places).name == "owner/name:m-Q8_0.gguf"


def test_a_repository_of_several_gguf_files_lists_them(places):
    add_hub_gguf(places, "owner/name", "m-Q4_0.gguf", "m-Q8_0.gguf")
    with pytest.raises(ModelNotFound, match=r"owner/name:m-Q4_0\.gguf, owner/name:m-Q8_0\.gguf"):
        resolve("owner/name", places)


def test_a_converted_model_goes_by_its_name_without_the_key(places):
    folder = fill_folder(places.models / "m-Q4_0-0123abcd")
    assert resolve("m-Q4_0", places).folder == folder


@pytest.mark.parametrize("name", ["./nothing", "/no/such/folder", "~/nothing", "x.gguf", "../.."])
def test_a_path_to_nothing_is_never_taken_for_another_model(places, name):
    with pytest.raises(ModelError):
        resolve(name, places, allow_pull=True)


def test_a_file_that_is_no_model_says_what_would_be_one(places, tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("hello")
    with pytest.raises(ModelFileError, match=r"config\.json or a GGUF file"):
        resolve(str(file), places)


def test_a_folder_in_the_way_of_a_hub_id_is_no_model(places):
    Path("owner/name").mkdir(parents=True)
    snapshot = add_hub_model(places, "owner/name")
    assert resolve("owner/name", places).folder == snapshot


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(st.text(max_size=300))
def test_no_name_does_worse_than_not_being_found(places, name):
    with pytest.raises(ModelError):
        find_local(name, places)


def test_what_is_shown_of_the_starter_fetches_nothing(places):
    with pytest.raises(ModelNotFound, match="mlxcel models pull starter"):
        find_local(None, places)
    fill_folder(starter_folder(places.home))
    assert find_local(None, places).kind is ModelKind.STARTER
