"""Which settings files count: a named one, else those found by chance that nobody else can have written; and what these may not say."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from forebay_proxy.config import settings_file
from forebay_proxy.config.settings import Settings, load
from forebay_proxy.config.settings_file import SettingsFile, find_files
from forebay_proxy.core.errors import ConfigError

NOBODY = 65534
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A working directory of ours."""
    path = tmp_path / "here"
    path.mkdir(mode=0o755)
    return path


def written(path: Path, text: str = 'log_level = "debug"\n', mode: int = 0o644) -> Path:
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def found(here: Path, environ: dict[str, str] | None = None, explicit: Path | None = None) -> list[SettingsFile]:
    return find_files(explicit, environ or {}, here, Settings.model_fields)


def loaded(here: Path, environ: dict[str, str] | None = None) -> Settings:
    return load({}, {}, found(here, environ))


@pytest.mark.parametrize("environ", [{"XDG_CONFIG_HOME": ".config"}, {"HOME": "."}, {"XDG_CONFIG_HOME": "."}])
def test_a_relative_home_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environ: dict[str, str]) -> None:
    """Below the working directory anybody may have put it: its keys would open doors."""
    for folder in (tmp_path / ".config/forebay", tmp_path / "forebay"):
        folder.mkdir(parents=True)
        (folder / "forebay.toml").write_text("allow_uid = [1000]")
    monkeypatch.chdir(tmp_path)
    assert found(tmp_path, environ) == []


def test_where_files_are_looked_for(tmp_path: Path, here: Path) -> None:
    """--config, else FOREBAY_CONFIG, alone; else XDG_CONFIG_HOME or ~/.config, and the directory over it."""
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "xdg"), "HOME": str(tmp_path / "home")}
    assert found(here, environ) == []
    far = written(tmp_path / "xdg/forebay/forebay.toml")
    assert [file.path for file in found(here, environ)] == [far]
    near = written(here / "forebay.toml")
    assert [file.path for file in found(here, environ)] == [far, near]
    named = written(tmp_path / "named.toml")
    assert [file.path for file in found(here, {**environ, "FOREBAY_CONFIG": str(named)})] == [named]
    assert [file.path for file in found(here, {"FOREBAY_CONFIG": str(named)}, far)] == [far]
    own = written(tmp_path / "home/.config/forebay/forebay.toml")
    assert [file.path for file in found(tmp_path, {"HOME": str(tmp_path / "home")})] == [own]


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    """A wrong --config is an error, not a silent default."""
    with pytest.raises(ConfigError, match="does not exist"):
        found(tmp_path, explicit=tmp_path / "no.toml")


def test_the_nearer_file_hides_value_by_value_and_each_is_said(tmp_path: Path, here: Path) -> None:
    """One in a cloned repository must not switch off what its reader's own file says."""
    environ = {"XDG_CONFIG_HOME": str(tmp_path)}
    far = written(tmp_path / "forebay/forebay.toml", 'strict_origins = true\nlog_level = "error"\nallow_uid = [1000]\n')
    near = written(here / "forebay.toml")
    settings = loaded(here, environ)
    assert (settings.strict_origins, settings.log_level, settings.allow_uid) == (True, "debug", (1000,))
    assert settings.notices == (f"settings read from {far}", f"settings read from {near}")


def test_a_file_that_is_both_is_read_once_with_all_its_keys(tmp_path: Path) -> None:
    """Whoever stands in ~/.config/forebay has one file."""
    path = written(tmp_path / "forebay/forebay.toml", "allow_uid = [1000]\n")
    assert [file.path for file in found(path.parent, {"XDG_CONFIG_HOME": str(tmp_path)})] == [path]
    assert loaded(path.parent, {"XDG_CONFIG_HOME": str(tmp_path)}).allow_uid == (1000,)


@pytest.mark.parametrize("place", ["here/forebay.toml", "xdg/forebay/forebay.toml"])
@pytest.mark.parametrize(("mode", "folder"), [(0o664, 0o755), (0o646, 0o755), (0o644, 0o775), (0o644, 0o757), (0o644, 0o1777)])
def test_one_that_others_can_write_is_not_read(tmp_path: Path, here: Path, place: str, mode: int, folder: int) -> None:
    """Neither it nor one in such a directory: said with its mend, and the start goes on."""
    path = written(tmp_path / place, "this is = = no TOML, and nobody looks\n", mode)
    path.parent.chmod(folder)
    settings = loaded(here, {"XDG_CONFIG_HOME": str(tmp_path / "xdg")})
    assert settings.model_dump() == Settings().model_dump()
    (said,) = settings.notices
    assert f"{path} is not read" in said
    assert "chmod go-w" in said


@needs_root
@pytest.mark.parametrize("uid", [NOBODY, 1000])
@pytest.mark.parametrize("whose", ["file", "folder"])
def test_one_of_another_user_is_not_read(here: Path, uid: int, whose: str) -> None:
    """What it says does not matter, even where it is unreadable nonsense."""
    path = written(here / "forebay.toml", "port = = 1\n", 0o600)
    os.chown(path if whose == "file" else here, uid, uid)
    settings = loaded(here)
    assert settings.model_dump() == Settings().model_dump()
    assert f"belongs to uid {uid}, not to you" in settings.notices[0]


@needs_root
def test_a_link_is_judged_by_what_it_leads_to_and_where_that_lies(tmp_path: Path, here: Path) -> None:
    """A link laid in our directory into somebody else's; and one that leads to a place of ours."""
    (here / "forebay.toml").symlink_to(tmp_path / "theirs/forebay.toml")
    assert loaded(here).notices == ()  # it leads nowhere
    path = written(tmp_path / "theirs/forebay.toml")
    assert loaded(here).log_level == "debug"
    path.parent.chmod(0o777)
    assert loaded(here).log_level == "info"
    path.parent.chmod(0o755)
    os.chown(path, 1000, 1000)
    assert loaded(here).log_level == "info"


@needs_root
def test_a_user_reads_what_root_wrote(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An administrator's file in a directory of root's counts."""
    written(here / "forebay.toml")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert loaded(here).log_level == "debug"


@needs_root
def test_in_a_user_namespace_the_uid_of_everybody_is_not_ours(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of any unmapped user shows up as the overflow uid there, also when that is our own number."""
    written(here / "forebay.toml")
    for path in (here, here / "forebay.toml"):
        os.chown(path, NOBODY, NOBODY)
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY)
    assert loaded(here).log_level == "debug"
    monkeypatch.setattr(settings_file, "anybodys_uid", lambda: NOBODY)
    assert "may be anybody" in loaded(here).notices[0]


@needs_root
@pytest.mark.parametrize(("uid", "mode", "cause"), [(NOBODY, 0o644, "belongs to uid 65534"), (0, 0o666, "can be written by others")])
def test_a_named_one_that_is_not_ours_is_an_error(tmp_path: Path, uid: int, mode: int, cause: str) -> None:
    """It was meant, so a start without it would be another one than was asked for."""
    path = written(tmp_path / "named.toml", mode=mode)
    shutil.chown(path, uid, uid)
    for explicit, environ in ((path, {}), (None, {"FOREBAY_CONFIG": str(path)})):
        with pytest.raises(ConfigError, match=cause):
            found(tmp_path, environ, explicit)


def test_a_named_one_may_lie_where_config_maps_do(tmp_path: Path) -> None:
    """Kubernetes' folder for it is 0777 on a read-only mount."""
    path = written(tmp_path / "map/forebay.toml", "allow_uid = [1000]\n")
    path.parent.chmod(0o777)
    assert load({}, {}, found(tmp_path, explicit=path)).allow_uid == (1000,)


DOORS = [
    'host = "0.0.0.0"', 'token = "t"', "allow_uid = [65534]", 'allow_origin = ["http://127.0.0.1:9"]', 'gs_endpoint = "https://evil.example"',
    'allow_profile = ["prod"]', 'pass_header = ["Proxy-Authorization"]', 'file_root = ["/etc"]', 'access_log = "~/.profile"',
    'secret_param = ["split"]', 'set = "http://10.0.0.1/admin?do={0..9}"',
    'set = ["s3://b/0.tar"]', 'revalidate = "never"', "revalidate = 3600",
    "strict_origins = false", 'cache_dir = "cache"', 'cache_dir = "."', 'cache_dir = "../here/x"',
    'cache_dir = "../beside"',
]  # fmt: skip


@pytest.mark.parametrize("line", DOORS)
def test_keys_that_open_doors_do_not_come_from_the_working_directory(tmp_path: Path, here: Path, line: str) -> None:
    """Ours by owner, but perhaps cloned: an error that names the key and where it may stand, where it counts."""
    path = written(here / "forebay.toml", line + "\n", 0o600)
    key = line.partition(" ")[0]
    with pytest.raises(ConfigError, match=rf"{key} does not count in .*--config .*XDG_CONFIG_HOME") as caught:
        loaded(here)
    assert "evil" not in str(caught.value)
    assert key in found(here, explicit=path)[0].table
    far = written(tmp_path / "xdg/forebay/forebay.toml", line + "\n", 0o600)
    path.unlink()
    (both,) = found(here, {"XDG_CONFIG_HOME": str(tmp_path / "xdg")})
    assert (both.path, key in both.table, both.problems) == (far, True, ())


def test_other_keys_do(tmp_path: Path, here: Path) -> None:
    """How much and how often are what a project may say, and where in the user's own cache home."""
    written(
        here / "forebay.toml",
        f'cache_size = "1GB"\ncache_dir = "{tmp_path}/home/.cache/c"\nstrict_origins = true\nport = 0\n',
    )
    settings = loaded(here, {"HOME": str(tmp_path / "home")})
    assert (settings.cache_dir, settings.strict_origins, settings.port) == (tmp_path / "home/.cache/c", True, 0)


@pytest.mark.parametrize(
    ("cache_dir", "counts"),
    [
        ("xdg/c", True), ("xdg", True), ("xdg/../data", False), ("xdgs", False), ("home/.cache/c", False), ("xdg/out", False),
        ("here/c", False),
    ],
)  # fmt: skip
def test_where_a_cloned_repository_may_put_a_cache(tmp_path: Path, here: Path, cache_dir: str, counts: bool) -> None:
    """Below the user's cache home, links followed. Elsewhere it would fill and lock what it chooses: the start says so and ends."""
    (tmp_path / "xdg").mkdir()
    (tmp_path / "xdg/out").symlink_to(tmp_path)
    written(here / "forebay.toml", f'cache_dir = "{tmp_path}/{cache_dir}"\n')
    environ = {"XDG_CACHE_HOME": str(tmp_path / "xdg"), "HOME": str(tmp_path / "home")}
    if counts:
        assert loaded(here, environ).cache_dir == tmp_path / cache_dir
    else:
        with pytest.raises(ConfigError, match=f"a cache_dir that is not below {tmp_path}/xdg does not count in .*--config"):
            loaded(here, environ)


def test_a_cache_that_came_along_does_not_count_below_the_cache_home_either(tmp_path: Path, here: Path) -> None:
    """The repository may have been cloned to there, its shards with it."""
    written(here / "forebay.toml", f'cache_dir = "{here}/c"\n')
    with pytest.raises(ConfigError, match="does not count"):
        loaded(here, {"XDG_CACHE_HOME": str(tmp_path)})


def test_without_a_home_no_cache_dir_counts(here: Path) -> None:
    """Nor one of a user who is none, nor what is no path."""
    for cache_dir in ("/c", "~nobody-of-that-name/c", "/\\u0000"):
        written(here / "forebay.toml", f'cache_dir = "{cache_dir}"\n')
        with pytest.raises(ConfigError, match="cache_dir does not count"):
            loaded(here)


def test_each_setting_was_thought_about() -> None:
    """A new key is either a door or in this list; add it to one of them."""
    harmless = {
        "port", "socket", "cache_dir", "cache_size", "free_floor", "allow_network_fs", "strict_origins", "gs_anonymous",
        "origin_digests", "verify_every_s", "prefetch", "origin_connections", "connect_timeout_s", "idle_timeout_s",
        "retry_budget_s", "drain_timeout_s", "idle_exit_s", "log_level",
    }  # fmt: skip
    assert harmless | settings_file._DOORS == set(Settings.model_fields)
    assert not harmless & settings_file._DOORS
