"""Which settings file counts: a named one, else the user's own where nobody else can have written it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from forebay_proxy.config import settings_file
from forebay_proxy.config.settings import Settings, load
from forebay_proxy.config.settings_file import find_file
from forebay_proxy.core.errors import ConfigError

NOBODY = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder of ours for settings."""
    path = tmp_path / "home/.config/forebay"
    path.mkdir(mode=0o755, parents=True)
    return path


def written(path: Path, text: str = 'log_level = "debug"\n', mode: int = 0o644) -> Path:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def loaded(home: Path) -> Settings:
    return load({}, {}, find_file(None, {"HOME": str(home.parents[1])}))


@pytest.mark.parametrize("environ", [{"XDG_CONFIG_HOME": ".config"}, {"HOME": "."}, {"XDG_CONFIG_HOME": "."}])
def test_a_relative_home_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    """Below the working directory anybody may have put it: its keys would open doors."""
    for folder in (tmp_path / ".config/forebay", tmp_path / "forebay"):
        folder.mkdir(parents=True)
        (folder / "forebay.toml").write_text("allow_uid = [1000]")
    monkeypatch.chdir(tmp_path)
    assert find_file(None, environ).table == {}


def test_where_the_file_is_looked_for(tmp_path: Path, home: Path) -> None:
    """--config, else FOREBAY_CONFIG, alone; else XDG_CONFIG_HOME or ~/.config."""
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "xdg"), "HOME": str(tmp_path / "home")}
    assert find_file(None, environ).table == {}
    own, far, named = (written(path / "forebay.toml") for path in (home, tmp_path / "xdg/forebay", tmp_path / "named"))
    assert find_file(None, environ).path == far
    assert find_file(None, {"HOME": str(tmp_path / "home")}).path == own
    assert find_file(None, {**environ, "FOREBAY_CONFIG": str(named)}).path == named
    assert find_file(far, {"FOREBAY_CONFIG": str(named)}).path == far


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    """A wrong --config is an error, not a silent default."""
    with pytest.raises(ConfigError, match="does not exist"):
        find_file(tmp_path / "no.toml", {})


@pytest.mark.parametrize(("mode", "folder"), [(0o664, 0o755), (0o646, 0o755), (0o644, 0o775), (0o644, 0o757), (0o644, 0o1777)])
def test_one_that_others_can_write_is_not_read(home: Path, mode: int, folder: int) -> None:
    """Neither it nor one in such a directory: said with its mend, and the start goes on."""
    path = written(home / "forebay.toml", "this is = = no TOML, and nobody looks\n", mode)
    home.chmod(folder)
    settings = loaded(home)
    assert settings.model_dump() == Settings().model_dump()
    (said,) = settings.notices
    assert f"{path} is not read" in said
    assert "chmod go-w" in said


@needs_root
def test_a_link_is_judged_by_what_it_leads_to_and_where_that_lies(tmp_path: Path, home: Path) -> None:
    """A link laid in our directory into somebody else's; and one that leads to a place of ours."""
    (home / "forebay.toml").symlink_to(tmp_path / "theirs/forebay.toml")
    assert loaded(home).notices == ()  # it leads nowhere
    path = written(tmp_path / "theirs/forebay.toml")
    assert loaded(home).log_level == "debug"
    path.parent.chmod(0o777)
    assert loaded(home).log_level == "info"
    path.parent.chmod(0o755)
    os.chown(path, 1000, 1000)
    assert loaded(home).log_level == "info"


@needs_root
def test_a_user_reads_what_root_wrote(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator's file in a directory of root's counts."""
    written(home / "forebay.toml")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert loaded(home).log_level == "debug"


@needs_root
def test_in_a_user_namespace_the_uid_of_everybody_is_not_ours(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of any unmapped user shows up as the overflow uid there, also when that is our own number."""
    written(home / "forebay.toml")
    for path in (home, home / "forebay.toml"):
        os.chown(path, NOBODY, NOBODY)
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    assert loaded(home).log_level == "debug"
    monkeypatch.setattr(settings_file, "anybodys_uid", lambda: NOBODY)
    assert "may be anybody" in loaded(home).notices[0]


@needs_root
@pytest.mark.parametrize(("uid", "mode", "cause"), [(NOBODY, 0o644, "belongs to uid 65534"), (0, 0o666, "can be written by others")])
def test_a_named_one_that_is_not_ours_is_an_error(tmp_path: Path, uid: int, mode: int, cause: str) -> None:
    """It was meant, so a start without it would be another one than was asked for."""
    path = written(tmp_path / "named.toml", mode=mode)
    shutil.chown(path, uid, uid)
    for explicit, environ in ((path, {}), (None, {"FOREBAY_CONFIG": str(path)})):
        with pytest.raises(ConfigError, match=cause):
            find_file(explicit, environ)


def test_a_named_one_may_lie_where_config_maps_do(tmp_path: Path) -> None:
    """Kubernetes' folder for it is 0777 on a read-only mount."""
    path = written(tmp_path / "map/forebay.toml", "allow_uid = [1000]\n")
    path.parent.chmod(0o777)
    assert load({}, {}, find_file(path, {})).allow_uid == (1000,)
