"""Tests of engine/models/remove.py."""

from pathlib import Path

import pytest

from engine.errors import InvalidParams
from engine.models.catalog import ModelPlaces, conversion_folder, local_models
from engine.models.remove import removal, remove
from engine.models.resolve import find_local
from engine.models.starter import starter_folder
from tests.engine.models.model_folders import add_hub_gguf, add_hub_model, fill_folder


@pytest.fixture
def places(tmp_path: Path) -> ModelPlaces:
    return ModelPlaces(home=tmp_path / "home", hub_cache=tmp_path / "hub")


def remove_named(name: str, places: ModelPlaces) -> int:
    return remove(removal(find_local(name, places), places))


def test_a_hub_model_goes_with_its_whole_repository_and_no_other(places):
    snapshot = add_hub_model(places, "owner/name")
    add_hub_model(places, "owner/other")
    freed = remove_named("owner/name", places)
    assert freed >= len(b"weights")
    assert not snapshot.parents[1].exists()
    assert [model.name for model in local_models(places)] == ["owner/other"]


def test_the_starter_goes_with_its_folder(places):
    folder = fill_folder(starter_folder(places.home))
    remove_named("starter", places)
    assert not folder.exists()


def test_of_several_gguf_files_the_named_one_goes_with_its_blob_and_its_conversion(places):
    snapshot = add_hub_gguf(places, "owner/name", "m-Q4_0.gguf", "m-Q8_0.gguf")
    conversion = fill_folder(conversion_folder(snapshot / "m-Q4_0.gguf", places))
    remove_named("owner/name:Q4_0", places)
    assert not conversion.exists()
    assert [file.name for file in snapshot.iterdir()] == ["m-Q8_0.gguf"]
    blobs = snapshot.parents[1] / "blobs"
    assert [file.name for file in blobs.iterdir()] == ["blob-of-m-Q8_0.gguf"]


def test_the_last_gguf_file_takes_its_repository_along(places):
    snapshot = add_hub_gguf(places, "owner/name", "m-Q4_0.gguf")
    remove_named("owner/name", places)
    assert not snapshot.parents[1].exists()


def test_a_folder_of_the_users_own_is_refused(places, tmp_path):
    folder = fill_folder(tmp_path / "mine")
    with pytest.raises(InvalidParams, match="delete it yourself"):
        remove_named(str(folder), places)
    assert (folder / "model.safetensors").exists()


@pytest.mark.parametrize("inside", ["hub/..", "hub/../mine/..", "home/models/.."])
def test_a_path_cannot_climb_out_of_the_caches(places, tmp_path, inside):
    fill_folder(tmp_path / "mine")
    for folder in (places.hub_cache, places.models, tmp_path / "home"):
        folder.mkdir(parents=True, exist_ok=True)
    path = tmp_path / inside
    (path / "config.json").write_text("{}")
    with pytest.raises(InvalidParams, match="delete it yourself"):
        remove_named(str(path), places)


def test_a_link_is_cut_and_what_it_leads_to_stays(places, tmp_path):
    outside = fill_folder(tmp_path / "precious")
    places.models.mkdir(parents=True)
    link = places.models / "linked-12345678"
    link.symlink_to(outside)
    assert remove_named("linked", places) == 0
    assert not link.is_symlink()
    assert (outside / "model.safetensors").exists()


def test_links_inside_a_repository_are_not_followed_out_of_it(places, tmp_path):
    outside = fill_folder(tmp_path / "precious")
    snapshot = add_hub_model(places, "owner/name")
    (snapshot / "extra").symlink_to(outside)
    remove_named("owner/name", places)
    assert (outside / "model.safetensors").exists()


def test_a_gguf_link_that_leads_outside_leaves_its_target(places, tmp_path):
    outside = tmp_path / "precious.gguf"
    outside.write_bytes(b"GGUF")
    snapshot = add_hub_gguf(places, "owner/name", "m-Q8_0.gguf")
    (snapshot / "m-Q4_0.gguf").symlink_to(outside)
    remove_named("owner/name:Q4_0", places)
    assert outside.exists()
    assert not (snapshot / "m-Q4_0.gguf").is_symlink()
