"""What a setting is called as a flag and in the environment, and what the environment says: the layer below the flags."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

__all__ = ["PREFIX", "env_name", "flag_name", "from_environ", "nearest"]

PREFIX = "FOREBAY_"

# Variables that are ours but no settings: what clients inside a job read, and where the file is.
OTHER_VARIABLES = frozenset({"URL", "JOB", "JOB_MADE", "AHEAD", "CONFIG"})
# A Kubernetes Service named "forebay" makes every pod's environment say FOREBAY_PORT=tcp://10.0.0.1:7070 and friends.
_SERVICE_LINK = re.compile(r"SERVICE_(HOST|PORT.*)|PORT_\d+_(TCP|UDP).*")
_SERVICE_LINK_VALUE = re.compile(r"(tcp|udp)://")


def env_name(name: str) -> str:
    """``cache_dir`` -> ``FOREBAY_CACHE_DIR``."""
    return PREFIX + name.upper()


def flag_name(name: str) -> str:
    """``cache_dir`` -> ``--cache-dir``."""
    return "--" + name.replace("_", "-")


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
        elif near := nearest(word, by_variable, PREFIX):
            notices.append(f"{variable} is not a setting of Forebay: ignored{near}")
    return found, notices


def nearest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """The known word that was probably meant, as a clause; "" where none is near."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.7)
    return f"; did you mean {prefix}{near[0]}?" if near else ""
