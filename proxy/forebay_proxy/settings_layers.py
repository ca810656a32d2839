"""The raw layers below the flags: which file is read, what it says, what the environment says."""

from __future__ import annotations

import difflib
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from forebay_proxy.errors import ConfigError

__all__ = ["FILE_NAME", "PREFIX", "file_notices", "find_file", "from_environ", "from_file"]

PREFIX = "FOREBAY_"
FILE_NAME = "forebay.toml"

# Variables that are ours but no settings: what clients inside a job read, and where the file is.
OTHER_VARIABLES = frozenset({"URL", "JOB", "AHEAD", "CONFIG"})
# A Kubernetes Service named "forebay" makes every pod's environment say FOREBAY_PORT=tcp://10.0.0.1:7070 and friends.
_SERVICE_LINK = re.compile(r"SERVICE_(HOST|PORT.*)|PORT_\d+_(TCP|UDP).*")
_SERVICE_LINK_VALUE = re.compile(r"(tcp|udp)://")


def find_file(explicit: Path | None, environ: Mapping[str, str], directory: Path) -> Path | None:
    """The settings file: ``explicit`` (--config), $FOREBAY_CONFIG, ``directory``/forebay.toml, $XDG_CONFIG_HOME/forebay/forebay.toml.

    None when there is none; raises ``ConfigError`` when one was named and is absent.
    """
    named = explicit or (Path(environ[PREFIX + "CONFIG"]) if environ.get(PREFIX + "CONFIG") else None)
    if named is not None:
        if not named.is_file():
            raise ConfigError(f"settings file {named} does not exist", next_step="check --config or FOREBAY_CONFIG")
        return named
    home = environ.get("XDG_CONFIG_HOME") or (environ["HOME"] + "/.config" if environ.get("HOME") else "")
    candidates = [directory / FILE_NAME] + ([Path(home) / "forebay" / FILE_NAME] if home else [])
    return next((path for path in candidates if path.is_file()), None)


def from_file(path: Path, names: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
    """(known keys and values, problems with unknown ones). Raises ``ConfigError`` when the file cannot be read as TOML."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"settings file {path} is not valid TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"settings file {path} cannot be read: {error.strerror}") from error
    known = set(names)
    problems = [f"{path} has an unknown key {key!r}{_nearest(key, known)}" for key in table if key not in known]
    return {key: value for key, value in table.items() if key in known}, problems


def from_environ(environ: Mapping[str, str], names: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """(settings found in FOREBAY_* variables, notices about variables that look like a misspelt one).

    An empty variable is "not given", as everywhere; only ``FOREBAY_SOCKET=`` means something (no socket). A misspelt variable is a notice
    and not an error: environments are inherited from places the reader cannot change.
    """
    by_variable = {name.upper(): name for name in names}
    found: dict[str, str] = {}
    notices: list[str] = []
    for variable, value in environ.items():
        word = variable.removeprefix(PREFIX)
        if word == variable or word in OTHER_VARIABLES or _SERVICE_LINK.fullmatch(word):
            continue
        if word == "PORT" and _SERVICE_LINK_VALUE.match(value):
            notices.append(f"FOREBAY_PORT={value} is a Kubernetes service link, not a setting: ignored")
        elif word in by_variable:
            if value or word == "SOCKET":
                found[by_variable[word]] = value
        elif near := _nearest(word, by_variable, PREFIX):
            notices.append(f"{variable} is not a setting of Forebay: ignored{near}")
    return found, notices


def file_notices(path: Path | None, table: Mapping[str, Any]) -> list[str]:
    """A token in a file that others can read is said once."""
    if path is None or "token" not in table or not path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH):
        return []
    return [f"{path} holds a token and can be read by others: chmod 600 {path}"]


def _nearest(word: str, known: Iterable[str], prefix: str = "") -> str:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f"; did you mean {prefix}{near[0]}?" if near else ""
