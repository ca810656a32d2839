"""The settings file: the one that --config or FOREBAY_CONFIG names, else ``forebay.toml`` below ``$XDG_CONFIG_HOME``.

A named one that somebody else could have written is refused. The other is then not read, and that is said: it must neither open doors nor
stop a start. ``forebay.toml`` in the working directory is not read unless it is named: it may have come with a cloned repository.
"""

from __future__ import annotations

import os
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.uids import anybodys_uid

__all__ = ["SettingsFile", "find_file"]

_NAME = "forebay.toml"
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OPEN = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_MAX_BYTES = 1 << 20  # a few kilobytes are normal


@dataclass(frozen=True)
class SettingsFile:
    """A settings file: what it says (``table``), and notices for people."""

    path: Path
    table: Mapping[str, Any] = field(default_factory=dict)
    notices: tuple[str, ...] = ()


class _NotOurs(Exception):
    """Somebody else could have written it; says who, and the mend."""


def find_file(explicit: Path | None, environ: Mapping[str, str]) -> SettingsFile:
    """The settings file that counts, empty where there is none: ``explicit`` (--config), else $FOREBAY_CONFIG, else the user's own.

    Raises ``ConfigError`` for a named one that is absent or not ours, and for one that is no TOML.
    """
    named = explicit or (Path(environ["FOREBAY_CONFIG"]) if environ.get("FOREBAY_CONFIG") else None)
    if named is not None:
        return _named(named)
    home = environ.get("XDG_CONFIG_HOME") or (environ["HOME"] + "/.config" if environ.get("HOME") else "")
    path, here = Path(home) / "forebay" / _NAME, Path(_NAME).absolute()
    # A relative home, as the XDG specification says, is none. os.path, not Path: what cannot even be looked at is not there.
    found = _found(path) if os.path.isabs(home) and os.path.isfile(path) else SettingsFile(path)
    if os.path.isfile(here) and here != path:
        found = replace(found, notices=(*found.notices, f"{here} is not read: name it by --config or FOREBAY_CONFIG if it is meant"))
    return found


def _named(path: Path) -> SettingsFile:
    if not path.is_file():
        raise ConfigError(f"settings file {path} does not exist", next_step="check --config or FOREBAY_CONFIG")
    try:
        # Its folder is not judged: Kubernetes mounts a ConfigMap in one of mode 0777, and a file put in this one's place has its owner.
        return _parsed(path, _own_text(path))
    except _NotOurs as error:
        raise ConfigError(f"settings file {error}", next_step="name a file of your own by --config or FOREBAY_CONFIG") from None


def _found(path: Path) -> SettingsFile:
    try:
        for folder in (path.parent, Path(os.path.realpath(path)).parent):
            _check(folder.stat(), folder, mend=f"name the file by --config if you trust it, or chmod go-w {folder}")
        return _parsed(path, _own_text(path))
    except (_NotOurs, OSError) as error:  # OSError: a folder that cannot be looked at
        return SettingsFile(path, notices=(f"settings file {path} is not read: {error}",))


def _parsed(path: Path, text: bytes) -> SettingsFile:
    try:
        table = tomllib.loads(text.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        step = 'texts and sizes stand in quotes: cache_size = "200GB"' if isinstance(error, tomllib.TOMLDecodeError) else ""
        raise ConfigError(f"settings file {path} is not valid TOML: {error}", next_step=step) from error
    notices = [f"settings read from {path}"]
    if "token" in table and path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        notices.append(f"{path} holds a token and can be read by others: chmod 600 {path}")
    return SettingsFile(path, table, tuple(notices))


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
