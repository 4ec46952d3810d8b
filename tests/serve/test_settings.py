"""The table of serve's settings: complete, classified, documented, checked."""

from dataclasses import fields

import pytest

from engine.errors import InvalidParams
from engine.scheduler.preemption import PreemptionPolicy
from mlxcel_cli.command_tree import command_tree
from mlxcel_cli.config import setting_types
from mlxcel_cli.serve.listening import tls_context
from mlxcel_cli.serve.middleware import read_keys
from mlxcel_cli.serve.settings import ServeSettings, settings_report, settle
from mlxcel_cli.serve_options import SETTINGS, Mutability, ServeOptions

TABLE = SETTINGS


def options() -> dict:
    return {one.name: one for one in command_tree().commands["serve"].params}


def test_every_option_of_serve_is_classified_and_has_a_value():
    names = [one.name for one in fields(ServeOptions)]
    assert names == list(TABLE) == [one.name for one in fields(ServeSettings)]


def test_every_setting_is_an_option_and_a_variable():
    assert set(TABLE) <= set(options())
    assert set(TABLE) <= set(setting_types())


@pytest.mark.parametrize("name", list(TABLE))
def test_help_shows_the_default_of_the_table(name):
    default = TABLE[name].default
    told = options()[name].help
    if default in (None, (), False):
        return
    named = {True: options()[name].opts[0], ("localhost",): "localhost"}
    words = named.get(default, str(default).removesuffix(".0"))
    assert f"Default: {words}" in told


def test_open_options_take_the_table_s_defaults():
    settings = settle(ServeOptions())
    assert {name: getattr(settings, name) for name in TABLE} == {
        name: row.default for name, row in TABLE.items()
    }


def test_the_report_has_every_setting_and_no_secret():
    report = settings_report(settle(ServeOptions(api_key=["s3cret"], port=0)))
    assert list(report) == list(TABLE)
    assert "s3cret" not in repr(report)
    assert report["api_key"]["value"] == "set"
    assert report["port"] == {
        "value": 0, "default": 8080, "change": "start-up", "variable": "MLXCEL_PORT",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"context_shift": True}, "--context-shift"),
        ({"keep": 3}, "--keep"),
        ({"parallel": 0}, "--parallel"),
        ({"port": 99999}, "--port"),
        ({"port": -1}, "--port"),
        ({"max_kv_size": 0}, "--max-kv-size"),
        ({"prefill_chunk_size": -1}, "--prefill-chunk-size"),
        ({"kv_cache_budget": "lots"}, "--kv-cache-budget"),
        ({"kv_cache_budget": "0"}, "--kv-cache-budget"),
        ({"access_log": "loud"}, "--access-log"),
        ({"reasoning_format": "loud"}, "--reasoning-format"),
        ({"preemption_policy": "dice"}, "--preemption-policy"),
        ({"idle_unload": float("nan")}, "--idle-unload"),
        ({"drain_timeout": float("inf")}, "--drain-timeout"),
        ({"ssl_cert_file": "x.pem"}, "--ssl-cert-file"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_by_name(given, field):
    with pytest.raises(InvalidParams) as caught:
        settle(ServeOptions(**given))
    assert caught.value.field == field


def test_the_policies_that_may_be_chosen_are_the_scheduler_s():
    assert SETTINGS["preemption_policy"].choices == tuple(PreemptionPolicy)


def test_only_changeable_settings_change():
    settings = settle(ServeOptions())
    changeable = {name for name, row in TABLE.items() if row.change is Mutability.CHANGEABLE}
    for name in TABLE:
        if name in changeable:
            assert getattr(settings.changed({name: TABLE[name].default}), name) is not None
        else:
            with pytest.raises(InvalidParams):
                settings.changed({name: TABLE[name].default})


@pytest.mark.parametrize(
    "changes",
    [{"drain_timeout": True}, {"drain_timeout": "1"}, {"x": 1}, {"sse_ping_interval": 10**400}],
)
def test_a_change_of_the_wrong_type_or_length_is_refused(changes):
    with pytest.raises(InvalidParams):
        settle(ServeOptions()).changed(changes)


def test_one_answer_at_a_time_is_one_slot_and_a_budget_is_the_scheduler_s():
    settings = settle(ServeOptions(no_batch=True, parallel=4, kv_cache_budget="4096"))
    assert settings.slots == 1
    assert settings.scheduler(settings.kv_budget, pipelined=True).kv_budget_tokens == 4096


@pytest.mark.parametrize(
    ("given", "origins"),
    [
        (["*"], None),
        (None, frozenset({"localhost"})),
        (["none"], frozenset()),
        (["https://a"], frozenset({"https://a"})),
    ],
)
def test_origins_are_any_none_or_listed(given, origins):
    assert settle(ServeOptions(cors_origin=given)).origins == origins


@pytest.mark.parametrize(
    ("content", "keys"),
    [
        (b"one\r\ntwo\n", ("one", "two")),
        (b"\xef\xbb\xbfone\n", ("one",)),
        (b"# a comment\n   # one that is indented\n\n  one  \n", ("one",)),
        ("cl\u00e9".encode(), ("cl\u00e9",)),
    ],
)
def test_a_file_of_keys_holds_its_keys_and_nothing_else(content, keys, tmp_path):
    file = tmp_path / "keys"
    file.write_bytes(content)
    assert read_keys((), file) == tuple(key.encode() for key in keys)


@pytest.mark.parametrize("content", [b"", b" \n", b" # only a comment\n", b"\xff\xfe"])
def test_a_file_without_keys_is_no_open_door(content, tmp_path):
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(InvalidParams, match="--api-key-file"):
        read_keys((), file)


@pytest.mark.parametrize("missing", ["cert.pem", "key.pem", "nothing"])
def test_tls_files_that_cannot_be_used_are_named(missing, tmp_path):
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for file in (cert, key):
        if file.name != missing:
            file.write_text("nonsense")
    asked = settle(ServeOptions(ssl_cert_file=cert, ssl_key_file=key))
    with pytest.raises(InvalidParams) as refused:
        tls_context(asked)
    assert str(cert) in str(refused.value)
    assert str(key) in str(refused.value)
