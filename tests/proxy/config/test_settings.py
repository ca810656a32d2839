"""Settings: one field is one flag, one variable and one key; the nearest of them counts; every mistake is named."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import pytest

from forebay_proxy.cli.sidecars.serve import serve
from forebay_proxy.config.settings import Settings, as_flags, as_json, default_text, env_name, has_flag, load
from forebay_proxy.config.settings_file import SettingsFile, find_file
from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.quantities import ShareOfDisk, TotalBytes


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def named(path: Path) -> SettingsFile:
    return find_file(path, {})


def test_flag_before_environment_before_file(tmp_path: Path) -> None:
    """Each layer hides the ones below it, value by value."""
    path = written(tmp_path / "forebay.toml", 'port = 1\nlog_level = "debug"\nhost = "::1"\n')
    settings = load({"port": "3"}, {"FOREBAY_PORT": "2", "FOREBAY_LOG_LEVEL": "error"}, named(path))
    assert (settings.port, settings.log_level, settings.host) == (3, "error", "::1")
    assert [settings.source_of(name) for name in ("port", "log_level", "host", "token")] == ["flag", "environment", "file", "default"]


def test_what_was_chosen_as_flags(tmp_path: Path) -> None:
    """A sidecar that is started with them has the same settings."""
    path = written(tmp_path / "forebay.toml", 'log_level = "debug"\nset = ["s3://b/{0..9}.tar", "s3://b/it\'s.tar"]\nsocket = "off"\n')
    flags = {"cache_size": "75%", "allow_origin": ("s3://a", "http://127.0.0.1:9"), "allow_network_fs": True, "cache_dir": "/a b"}
    settings = load(flags, {"FOREBAY_PORT": "2", "FOREBAY_PREFETCH": "off", "FOREBAY_IDLE_EXIT_S": "2m"}, named(path))
    chosen = as_flags(settings, as_json(settings))
    assert chosen is not None
    line = " ".join(chosen.values())
    params = serve.make_context("serve", shlex.split(line), resilient_parsing=True).params
    again = load({name: params[name] for name in Settings.model_fields if name in params}, {})
    assert {name for name in Settings.model_fields if getattr(settings, name) != getattr(again, name)} == set()


def test_nothing_chosen_is_no_flag() -> None:
    """And may be said, unlike a secret."""
    assert as_flags(load({}, {}), as_json(load({}, {}))) == {}


def test_what_no_flag_may_say_is_not_half_said() -> None:
    """A pattern with a signature, a profile's name, a token."""
    for flags in ({"token": "hush"}, {"set": ("https://o/a.tar?X-Amz-Signature=hush",)}, {"shared": "s3://c/p?profile=mine"}):
        settings = load({**flags, "port": "2"}, {})
        assert as_flags(settings, as_json(settings)) is None


def test_flags_that_were_not_given_hide_nothing() -> None:
    """None and an empty tuple are how click says "not given"."""
    settings = load({"port": None, "allow_origin": ()}, {"FOREBAY_PORT": "2", "FOREBAY_ALLOW_ORIGIN": "s3://a, s3://b"})
    assert settings.port == 2
    assert settings.allow_origin == ("s3://a", "s3://b")


def test_every_kind_of_value_is_understood_as_text() -> None:
    """A variable can say whatever a field can hold."""
    settings = load({}, {
        "FOREBAY_CACHE_SIZE": "75%", "FOREBAY_FREE_FLOOR": "10%", "FOREBAY_REVALIDATE": "1h", "FOREBAY_PREFETCH": "off",
        "FOREBAY_ALLOW_UID": "1000,1001", "FOREBAY_FILE_ROOT": "/nas, ~/data", "FOREBAY_IDLE_TIMEOUT_S": "500ms",
        "FOREBAY_LOG_LEVEL": "INFO", "FOREBAY_SOCKET": "off", "HOME": "/home/me",
    })  # fmt: skip
    assert settings.cache_size == ShareOfDisk(0.75)
    assert settings.free_floor == 0.1
    assert settings.revalidate == 3600
    assert settings.prefetch is False
    assert settings.allow_uid == (1000, 1001)
    assert settings.file_root == (Path("/nas"), Path("~/data").expanduser())
    assert settings.idle_timeout_s == 0.5
    assert settings.log_level == "info"
    assert settings.socket == ""


def test_toml_may_use_its_own_types(tmp_path: Path) -> None:
    """Integers are bytes or seconds, lists are lists, booleans booleans."""
    text = 'cache_size = 200_000_000\nconnect_timeout_s = 3\nallow_origin = ["s3://a"]\nstrict_origins = true\nfree_floor = 0.2\n'
    settings = load({}, {}, named(written(tmp_path / "forebay.toml", text)))
    assert (settings.cache_size, settings.connect_timeout_s, settings.allow_origin) == (TotalBytes(200_000_000), 3.0, ("s3://a",))
    assert (settings.strict_origins, settings.free_floor) == (True, 0.2)


def test_all_problems_in_one_error(tmp_path: Path) -> None:
    """Each wrong value is named with the place it was written in; the file's unknown keys are among them."""
    path = written(tmp_path / "forebay.toml", 'cache_sice = "1GB"\nlog_level = "loud"\n')
    with pytest.raises(ConfigError) as caught:
        load({"cache_size": "5XB"}, {"FOREBAY_PORT": "70000"}, named(path))
    message = str(caught.value)
    assert "--cache-size = '5XB'" in message
    assert "FOREBAY_PORT = '70000'" in message
    assert f"log_level in {path} = 'loud'" in message
    assert "unknown key 'cache_sice'; did you mean cache_size?" in message
    assert "\n" not in message


def test_a_wrong_token_is_not_repeated(tmp_path: Path) -> None:
    """A secret never shows in a message, whatever is wrong with it."""
    path = written(tmp_path / "forebay.toml", "token = 12345678\n")
    with pytest.raises(ConfigError) as caught:
        load({}, {}, named(path))
    assert "token" in str(caught.value)
    assert "12345678" not in str(caught.value)


def test_a_password_in_an_address_is_not_repeated() -> None:
    """It is refused because of it."""
    with pytest.raises(ConfigError, match="FOREBAY_GS_ENDPOINT") as caught:
        load({}, {"FOREBAY_GS_ENDPOINT": "https://user:hush-hush@host"})
    assert "hush-hush" not in str(caught.value)


def test_secrets_do_not_show() -> None:
    """Neither repr nor str of the settings holds the token."""
    settings = load({}, {"FOREBAY_TOKEN": "hush-hush"})
    assert "hush" not in repr(settings) + str(settings)
    assert settings.token is not None
    assert settings.token.get_secret_value() == "hush-hush"


def test_a_token_others_can_read_is_said_once(tmp_path: Path) -> None:
    """A world-readable file with a token in it is a notice with its mend."""
    path = written(tmp_path / "forebay.toml", 'token = "hush"\n')
    assert load({}, {}, named(path)).notices == (f"settings read from {path}",)
    path.chmod(0o644)
    assert load({}, {}, named(path)).notices[1:] == (f"{path} holds a token and can be read by others: chmod 600 {path}",)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "[::1]", "localhost"])
def test_loopback_needs_nothing(host: str) -> None:
    """Loopback in every spelling starts as it is."""
    assert load({"host": host}, {}).host == host


def test_a_misspelt_variable_is_a_notice_with_the_nearest_name() -> None:
    """Environments are inherited: a mistake in them is said, not refused."""
    settings = load({}, {"FOREBAY_CACHE_DIRR": "/x", "FOREBAY_SOMETHING_ELSE_ENTIRELY": "1", "FOREBAY_URL": "x", "FOREBAY_JOB": "x"})
    assert settings.notices == ("FOREBAY_CACHE_DIRR is not a setting of Forebay: ignored; did you mean FOREBAY_CACHE_DIR?",)


def test_kubernetes_service_links_are_no_settings() -> None:
    """A Service named forebay puts FOREBAY_PORT=tcp://… into every pod of its namespace."""
    links = {"FOREBAY_PORT": "tcp://10.0.0.1:7070", "FOREBAY_SERVICE_HOST": "10.0.0.1", "FOREBAY_PORT_7070_TCP_ADDR": "10.0.0.1"}
    settings = load({}, links)
    assert settings.port is None
    assert len(settings.notices) == 1
    assert "service link" in settings.notices[0]


def test_an_empty_variable_is_not_given() -> None:
    """Compose files and charts write empty variables for "unset"; only FOREBAY_SOCKET= means something: no socket."""
    settings = load({}, {"FOREBAY_PORT": "", "FOREBAY_SOCKET": ""})
    assert settings.port is None
    assert settings.socket == ""


def test_broken_toml_is_one_line(tmp_path: Path) -> None:
    """The file and the place in it are named."""
    with pytest.raises(ConfigError, match=r"forebay\.toml is not valid TOML: .*line 1"):
        load({}, {}, named(written(tmp_path / "forebay.toml", "port = = 1")))
    with pytest.raises(ConfigError) as caught:
        load({}, {}, named(written(tmp_path / "forebay.toml", "cache_size = 200GB")))
    assert caught.value.next_step == 'texts and sizes stand in quotes: cache_size = "200GB"'


def test_a_switch_that_is_none_says_what_to_write() -> None:
    """The library's own words name its types."""
    with pytest.raises(ConfigError, match=r"^FOREBAY_PREFETCH = 'maybe': write on or off$"):
        load({}, {"FOREBAY_PREFETCH": "maybe"})


def test_each_field_is_one_flag_one_variable_one_line() -> None:
    """Flags are made from the fields; each says its variable, its default and the reason of it. The token has no flag."""
    options = {parameter.name: parameter for parameter in serve.params if isinstance(parameter, click.Option)}
    for name, field in Settings.model_fields.items():
        assert has_flag(name) == (name != "token")
        assert field.description
        assert default_text(name)
        if has_flag(name):
            text = options[name].help or ""
            assert f"[{env_name(name)}; default: {default_text(name)}]" in text
            assert ";" in text.partition("  [")[0], f"{name} gives no reason"
