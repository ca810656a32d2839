"""Which settings files count: the named file, else the files found by chance, and the keys that those may not hold.

Two files are found by chance: ``forebay.toml`` in the working directory and the one below ``$XDG_CONFIG_HOME``. One that somebody else
could have written is not read, and that is said: it must neither open doors nor stop a start. The working directory may be a cloned
repository, whose file is ours by owner and another's by content; so keys that let somebody in, lead us or credentials somewhere, name
places to write or let old bytes pass stand in a file that was named, or below ``$XDG_CONFIG_HOME``. There such a key is an error and not
ignored: its owner meant it.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forebay_proxy.config.fields import nearest
from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.uids import anybodys_uid

__all__ = ["FILE_NAME", "SettingsFile", "find_files"]

FILE_NAME = "forebay.toml"
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_MAX_BYTES = 1 << 20  # a few kilobytes are normal
# They let somebody in (host, token, allow_uid), lead us or credentials somewhere (allow_origin, gs_endpoint, allow_profile, pass_header,
# file_root; set, which asks private hosts before any program names one), write (access_log appends to any file of ours), say what is a
# secret and so no part of a name (secret_param), or let a run read what its origin no longer holds (revalidate). So do strict_origins
# turned off, and a cache directory anywhere but in the user's own cache home: gigabytes are written there, and it is locked.
_DOORS = frozenset({
    "host", "token", "allow_uid", "allow_origin", "gs_endpoint", "allow_profile", "pass_header", "file_root", "access_log",
    "secret_param", "set", "revalidate",
})  # fmt: skip


@dataclass(frozen=True)
class SettingsFile:
    """One settings file: its settings (``table``), its faults in words (``problems``), and notices for people (``notices``)."""

    path: Path
    table: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


class _NotOurs(Exception):
    """Somebody else could have written it; says who, and the mend."""


def find_files(explicit: Path | None, environ: Mapping[str, str], directory: Path, names: Iterable[str]) -> list[SettingsFile]:
    """The settings files that count, the weaker first.

    ``explicit`` (--config), else $FOREBAY_CONFIG: that one alone. Else $XDG_CONFIG_HOME/forebay/forebay.toml, and over it
    ``directory``/forebay.toml. Raises ``ConfigError`` for a named one that is absent or not ours, and for one that is no TOML.
    """
    known = frozenset(names)
    named = explicit or (Path(environ["FOREBAY_CONFIG"]) if environ.get("FOREBAY_CONFIG") else None)
    if named is not None:
        return [_named(named, known)]
    here = directory / FILE_NAME
    home = environ.get("XDG_CONFIG_HOME") or (environ["HOME"] + "/.config" if environ.get("HOME") else "")
    home = home if os.path.isabs(home) else ""  # the XDG specification; a relative one is the working directory's, which opens no doors
    found = []
    # os.path, not Path: what cannot even be looked at, behind a link of somebody else's, is not there.
    if home and os.path.isfile(path := Path(home) / "forebay" / FILE_NAME):
        found.append(_found(path, known, lambda table: []))
        if os.path.isfile(here) and os.path.samefile(path, here):
            return found
    if os.path.isfile(here):
        found.append(_found(here, known, lambda table: _doors(here, table, _cache_home(environ))))
    return found


def _named(path: Path, known: frozenset[str]) -> SettingsFile:
    if not path.is_file():
        raise ConfigError(f"settings file {path} does not exist", next_step="check --config or FOREBAY_CONFIG")
    try:
        # Its folder is not judged: Kubernetes mounts a ConfigMap in one of mode 0777, and a file put in this one's place has its owner.
        return _parsed(path, _own_text(path), known, lambda table: [])
    except _NotOurs as error:
        raise ConfigError(f"settings file {error}", next_step="name a file of your own by --config or FOREBAY_CONFIG") from None


def _found(path: Path, known: frozenset[str], judge: Callable[[Mapping[str, Any]], list[str]]) -> SettingsFile:
    try:
        for folder in (path.parent, Path(os.path.realpath(path)).parent):
            _check(folder.stat(), folder, mend=f"name the file by --config if you trust it, or chmod go-w {folder}")
        return _parsed(path, _own_text(path), known, judge)
    except (_NotOurs, OSError) as error:  # OSError: a folder that cannot be looked at
        return SettingsFile(path, notices=(f"settings file {path} is not read: {error}",))


def _parsed(path: Path, text: bytes, known: frozenset[str], judge: Callable[[Mapping[str, Any]], list[str]]) -> SettingsFile:
    try:
        table = tomllib.loads(text.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        step = 'texts and sizes stand in quotes: cache_size = "200GB"' if isinstance(error, tomllib.TOMLDecodeError) else ""
        raise ConfigError(f"settings file {path} is not valid TOML: {error}", next_step=step) from error
    problems = [f"{path} has an unknown key {key!r}{nearest(key, known)}" for key in table if key not in known]
    notices = [f"settings read from {path}"]
    if "token" in table and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        notices.append(f"{path} holds a token and can be read by others: chmod 600 {path}")
    return SettingsFile(path, {key: value for key, value in table.items() if key in known}, (*problems, *judge(table)), tuple(notices))


def _doors(path: Path, table: Mapping[str, Any], cache_home: Path | None) -> list[str]:
    """Keys that do not count in the working directory, each with where it may stand."""
    found = sorted(_DOORS & table.keys())
    if table.get("strict_origins") is False:
        found.append("strict_origins")
    if "cache_dir" in table and not _is_harmless(path, table["cache_dir"], cache_home):
        found.append(f"a cache_dir that is not below {cache_home}" if cache_home else "cache_dir")
    elsewhere = (
        f"and may come with a cloned repository: name the file (--config {path}), or put the key into $XDG_CONFIG_HOME/forebay/{FILE_NAME}"
    )
    return [f"{key} does not count in {path}, which was found in the working directory {elsewhere}" for key in found]


def _is_harmless(path: Path, cache_dir: object, cache_home: Path | None) -> bool:
    """Whether ``cache_dir`` lies below the user's own cache home, where caches of programs are looked for and deleted without a question.

    Never one that may have come with the file, and so hold shards and sums of somebody else's making: a relative one, wherever it leads
    to, as the working directory may be a folder of the repository, and one below the file's folder.
    """
    if not isinstance(cache_dir, str):
        return True  # refused as what it is
    try:
        named = Path(cache_dir).expanduser()
        if cache_home is None or not named.is_absolute():
            return False
        return _is_below(named, cache_home) and not _is_below(named, path.parent)
    except (RuntimeError, ValueError):  # the home of nobody; a byte that no path has
        return False


def _is_below(path: Path, folder: Path) -> bool:
    found = os.path.realpath(folder)
    return os.path.commonpath((os.path.realpath(path), found)) == found


def _cache_home(environ: Mapping[str, str]) -> Path | None:
    """``$XDG_CACHE_HOME``, else ``~/.cache``; None where neither is told."""
    named = environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(named):
        return Path(named)
    return Path(environ["HOME"]) / ".cache" if os.path.isabs(environ.get("HOME", "")) else None


def _own_text(path: Path) -> bytes:
    """The file's text, judged and read through one descriptor, so that no other file is read than was judged."""
    try:
        _check(path.stat(), path)  # before it is opened, too: one of somebody else's that cannot be read is not ours to complain of
        descriptor = os.open(path, _OPEN)
    except OSError as error:
        raise ConfigError(f"settings file {path} cannot be read: {error.strerror}") from error
    with open(descriptor, "rb") as file:
        _check(os.fstat(descriptor), path)
        return file.read(_MAX_BYTES)


def _check(found: os.stat_result, path: Path, mend: str = "") -> None:
    """Raises ``_NotOurs`` unless we or root own the file and no other user may write to it."""
    if found.st_uid == anybodys_uid() and found.st_uid:
        raise _NotOurs(f"{path} belongs to uid {found.st_uid}, which in this user namespace may be anybody")
    if found.st_uid not in (0, os.geteuid()):
        raise _NotOurs(f"{path} belongs to uid {found.st_uid}, not to you (uid {os.geteuid()})")
    if found.st_mode & _OTHERS_MAY_WRITE:
        raise _NotOurs(f"{path} can be written by others (mode {stat.S_IMODE(found.st_mode):04o}): {mend or f'chmod go-w {path}'}")
