"""Settings: who wins, and what is refused."""

import math

import pytest

from engine.errors import InvalidParams
from mlxcel_cli.config import MachineSettings, load_settings, setting_types
from mlxcel_cli.options import LengthOptions, ModelOptions, OutputOptions
from mlxcel_cli.sampling_options import SamplingOptions


@pytest.fixture
def settings_of(tmp_path):
    """Settings of an options file's text and some variables."""
    path = tmp_path / "config.toml"

    def load(text: str = "", command: str = "generate", **variables: str):
        path.write_text(text)
        return load_settings(variables, command=command, config=path)

    return load


@pytest.mark.parametrize(
    ("flag", "variables", "text", "expected"),
    [
        pytest.param(0.1, {"MLXCEL_TEMPERATURE": "0.2"}, "temperature = 0.3", 0.1, id="the flag"),
        pytest.param(None, {"MLXCEL_TEMPERATURE": "0.2"}, "temperature = 0.3", 0.2, id="variable"),
        pytest.param(None, {}, "temperature = 0.3", 0.3, id="the options file"),
        pytest.param(0.0, {}, "temperature = 0.3", 0.0, id="a flag of 0 is a flag"),
        pytest.param(None, {}, "", None, id="nobody: the command's default"),
    ],
)
def test_the_first_place_that_names_a_setting_wins(settings_of, flag, variables, text, expected):
    settings = settings_of(text, **variables)
    assert settings.fill(SamplingOptions(temperature=flag)).temperature == expected


def test_a_command_s_table_wins_over_the_top_of_the_file_and_others_tables_do_not_count(
    settings_of,
):
    text = "top_k = 1\ntop_p = 0.5\n[generate]\ntop_k = 2\n[chat]\ntop_p = 0.9\n"
    filled = settings_of(text).fill(SamplingOptions())
    assert (filled.top_k, filled.top_p) == (2, 0.5)


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        pytest.param("max-tokens = 5", "max_tokens", 5, id="dashes as on the command line"),
        pytest.param("temperature = 1", "temperature", 1.0, id="a whole number is a number"),
        pytest.param('stop = "a"', "stop", ["a"], id="one text is a list of one"),
        pytest.param('stop = ["a", "b"]', "stop", ["a", "b"], id="texts"),
        pytest.param("ignore_eos = false", "ignore_eos", False, id="a switch"),
    ],
)
def test_the_options_file_is_read_by_type(settings_of, text, key, value):
    assert settings_of(text).values[key] == value


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        pytest.param("MLXCEL_MAX_TOKENS", "5", 5, id="whole number"),
        pytest.param("MLXCEL_STATS", "yes", True, id="switch on"),
        pytest.param("MLXCEL_STATS", "0", False, id="switch off"),
        pytest.param("MLXCEL_STOP", "a, b", ["a, b"], id="one text"),
        pytest.param("MLXCEL_STOP", '["a", "b"]', ["a", "b"], id="texts as JSON"),
        pytest.param("MLXCEL_MODEL", "a/b", "a/b", id="text"),
    ],
)
def test_variables_are_read_by_type(settings_of, variable, text, value):
    key = variable.removeprefix("MLXCEL_").lower()
    assert settings_of(**{variable: text}).values[key] == value


@pytest.mark.parametrize(
    ("text", "named"),
    [
        pytest.param("temprature = 1", ["config.toml: temprature", "temperature"], id="typo"),
        pytest.param("[generate]\nx = 1", ["config.toml: generate.x", "top_p"], id="in a table"),
        pytest.param(
            'top_k = "many"', ["config.toml: top_k", "a whole number", "'many'"], id="type"
        ),
        pytest.param(
            "top_k = true", ["config.toml: top_k", "a whole number"], id="a switch is none"
        ),
        pytest.param("stats = 1", ["config.toml: stats", "true or false"], id="a number is none"),
        pytest.param("stop = [1]", ["config.toml: stop", "array of strings"], id="texts"),
        pytest.param("generate = 1", ["config.toml: generate", "table"], id="a table is meant"),
        pytest.param("aliases = 1", ["config.toml: aliases", "table"], id="aliases"),
        pytest.param('prompt = "x"', ["config.toml: prompt"], id="a prompt is no setting"),
        pytest.param("= 1", ["config.toml", "TOML"], id="not TOML"),
    ],
)
def test_the_options_file_s_mistakes_name_file_key_and_what_is_allowed(settings_of, text, named):
    with pytest.raises(InvalidParams) as caught:
        settings_of(text)
    assert [part for part in named if part not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("variable", "text"), [("MLXCEL_TOP_K", "x"), ("MLXCEL_STATS", "maybe"), ("MLXCEL_STOP", "[1]")]
)
def test_a_variable_s_bad_value_names_it(settings_of, variable, text):
    with pytest.raises(InvalidParams, match=variable):
        settings_of(**{variable: text})


def test_a_variable_with_a_slip_is_warned_about_and_a_stranger_is_not(settings_of):
    warnings = settings_of(MLXCEL_TEMPRATURE="1", MLXCEL_WHATEVER="1").warnings
    assert warnings == (
        "the variable MLXCEL_TEMPRATURE is no setting; did you mean MLXCEL_TEMPERATURE?",
    )


def test_an_options_file_that_is_named_must_exist(tmp_path):
    with pytest.raises(InvalidParams, match="there is no file"):
        load_settings({}, command="generate", config=tmp_path / "none.toml")


def test_without_an_options_file_there_are_no_settings(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert load_settings({}, command="generate").values == {}


def test_machine_settings_come_from_the_same_places(settings_of):
    settings = settings_of('blas = "off"\ndeterministic = true', MLXCEL_PREFILL_CHUNK="512")
    assert settings.machine == MachineSettings(blas="off", deterministic=True, prefill_chunk=512)
    assert "blas" not in settings.values


def test_folders_follow_the_environment(settings_of, tmp_path):
    settings = settings_of(MLXCEL_HOME=str(tmp_path / "home"), HF_HOME=str(tmp_path / "hf"))
    assert settings.cache_home == tmp_path / "home"
    assert settings.hub_cache == tmp_path / "hf" / "hub"


def test_aliases_are_short_names_of_models(settings_of):
    settings = settings_of('[aliases]\nsmall = "owner/name"')
    assert settings.aliases == {"small": "owner/name"}


@pytest.mark.parametrize("text", ["1", "true", "YES", "on"])
def test_hf_hub_offline_is_honoured(settings_of, text):
    assert settings_of(HF_HUB_OFFLINE=text).hub_offline


def test_every_option_but_the_prompt_s_can_be_set():
    groups = (ModelOptions, LengthOptions, SamplingOptions, OutputOptions)
    options = {name for group in groups for name in group.__dataclass_fields__}
    assert options - set(setting_types()) == {"config"}


@pytest.mark.parametrize("name", ["MLXCEL_HOME", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"])
def test_a_home_folder_that_nobody_has_is_refused_by_name(settings_of, name):
    with pytest.raises(InvalidParams, match=name):
        settings_of(**{name: "~no-such-user/cache"})


def test_a_number_too_large_for_a_float_is_left_to_the_range_check(settings_of):
    assert settings_of(f"temperature = -1{'0' * 400}").values["temperature"] == -math.inf


@pytest.mark.parametrize("text", ["a = " + "[" * 100_000, f"a = {'9' * 5000}"])
def test_an_options_file_that_toml_readers_give_up_on_is_refused(settings_of, text):
    with pytest.raises(InvalidParams, match="TOML"):
        settings_of(text)


def test_a_variable_that_json_readers_give_up_on_is_refused(settings_of):
    with pytest.raises(InvalidParams, match="MLXCEL_STOP"):
        settings_of(MLXCEL_STOP="[" * 100_000)


@pytest.mark.parametrize("name", ["cache_clear_interval", "prefill_chunk"])
def test_a_machine_s_setting_below_its_bound_is_refused(settings_of, name):
    with pytest.raises(InvalidParams, match=name):
        settings_of(f"{name} = -1")
    assert getattr(settings_of(f"{name} = 0").machine, name) == 0
