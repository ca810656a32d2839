"""forebay config show: each value and who set it."""

from __future__ import annotations

import json

import pytest
from support.cli import invoke
from support.fake_sidecar import FakeSidecar

from forebay_proxy.config.settings import Settings


def test_each_setting_with_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line a setting: value, source, variable."""
    monkeypatch.setenv("FOREBAY_FREE_FLOOR", "10%")
    lines = invoke("config", "show", "--cache-size", "200GB").stdout.splitlines()
    rows = {line.split()[0]: line for line in lines}
    assert set(rows) == {"setting", *Settings.model_fields}
    assert rows["cache_size"].split() == ["cache_size", "200", "GB", "flag", "FOREBAY_CACHE_SIZE"]
    assert rows["free_floor"].split() == ["free_floor", "0.1", "environment", "FOREBAY_FREE_FLOOR"]
    assert rows["port"].endswith("default      FOREBAY_PORT")


def test_json_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values in base units."""
    monkeypatch.setenv("FOREBAY_FILE_ROOT", "/nas")
    shown = json.loads(invoke("config", "show", "--json", "--cache-size", "75%").stdout)
    assert shown["cache_size"] == {"value": "75%", "source": "flag"}
    assert shown["file_root"] == {"value": ["/nas"], "source": "environment"}
    assert shown["port"] == {"value": None, "source": "default"}


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_the_token_is_masked(monkeypatch: pytest.MonkeyPatch, form: list[str]) -> None:
    """That there is one shows, what it is does not."""
    monkeypatch.setenv("FOREBAY_TOKEN", "hush-hush")
    result = invoke("config", "show", *form)
    assert "hush" not in result.output
    assert "(set)" in result.stdout


def test_notices_are_on_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt variable is said beside the values, not among them."""
    monkeypatch.setenv("FOREBAY_CACHE_SIZ", "1GB")
    result = invoke("config", "show")
    assert "did you mean FOREBAY_CACHE_SIZE?" in result.stderr
    assert "SIZ " not in result.stdout


def test_a_pattern_is_shown_without_what_opens_it() -> None:
    """A signature stays where it was written."""
    for more in ((), ("--json",)):
        done = invoke("config", "show", "--set", "https://h.example/{0..9}.tar?token=hunter2", *more)
        assert (done.exit_code, "https://h.example/{0..9}.tar" in done.stdout, "hunter2" in done.output) == (0, True, False)


def test_those_of_the_running_sidecar_beside_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and sources are its own; what differs is shown."""
    with FakeSidecar() as sidecar:
        sidecar.status["settings"] = {
            "cache_size": {"value": "1 GB", "source": "flag"},
            "host": {"value": "127.0.0.1", "source": "default"},
        }
        monkeypatch.setenv("FOREBAY_URL", sidecar.url)
        shown = [line.split() for line in invoke("config", "show", "--running", "--cache-size", "2GB").stdout.splitlines()]
    assert ["cache_size", "1", "GB", "flag", "2000000000"] in shown
    assert ["host", "127.0.0.1", "default"] in shown
