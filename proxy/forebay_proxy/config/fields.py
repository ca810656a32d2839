"""What a setting can be: each kind of value with its parser, how a field describes itself, and its names. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from forebay_proxy.core.quantities import CacheLimit, parse_duration, parse_limit, parse_share

__all__ = [
    "PREFIX", "Budget", "Connections", "Directory", "Endpoint", "File", "Host", "Limit", "LogLevel", "Names", "Paths", "Patterns",
    "Port", "Revalidate", "Seconds", "Share", "Socket", "Uids", "env_name", "flag_name", "from_environ", "nearest", "setting",
]  # fmt: skip


def setting(default: Any, help: str, *, metavar: str = "", unset: str = "", flag: bool = True) -> Any:
    """A field; ``unset`` says in words what a default of None or () means, ``flag=False`` keeps the value out of argv."""
    return Field(default, description=help, json_schema_extra={"metavar": metavar, "unset": unset, "flag": flag})


def _listed(value: Any) -> Any:
    """A comma list (how a variable carries several values) as a tuple."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _patterns(value: Any) -> Any:
    # Not at commas: braces hold them, and so may a key.
    return tuple(value.split()) if isinstance(value, str) else value


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _limit(value: Any) -> Any:
    return value if value is None else parse_limit(value)


def _socket(value: Any) -> Any:
    return "" if value in ("", "off") else _home(value)


def _revalidate(value: Any) -> Any:
    if value in ("job", "never"):
        return value
    try:
        return parse_duration(value)
    except ValueError:
        raise ValueError(f"{str(value)!r} is neither 'job', 'never' nor a duration such as 1h") from None


def _endpoint(value: Any) -> Any:
    # The value stays out of the message: people write keys into such URLs.
    if isinstance(value, str) and not re.fullmatch(r"https?://[^/?#@\s]+(?:/[^?#@\s]*)?", value):
        raise ValueError("not an http(s) URL without credentials and query, such as https://storage.example.org")
    return value


def _home(value: Any) -> Any:
    try:
        return Path(value).expanduser() if isinstance(value, str) and value else value
    except RuntimeError:
        raise ValueError(f"{value!r} begins with the home of somebody who has none; write the path out") from None


def _homes(value: Any) -> Any:
    listed = _listed(value)
    return tuple(map(_home, listed)) if isinstance(listed, tuple | list) else listed


Host = Annotated[str, Field(min_length=1)]
Port = Annotated[int, Field(ge=0, le=65535)]
Socket = Annotated[Path | Literal[""] | None, BeforeValidator(_socket)]
Endpoint = Annotated[str | None, BeforeValidator(_endpoint)]
Directory = Annotated[Path | None, BeforeValidator(_home)]
File = Annotated[Path | None, BeforeValidator(_home)]
Limit = Annotated[CacheLimit | None, BeforeValidator(_limit)]
Connections = Annotated[int, Field(ge=1, le=1024)]
Revalidate = Annotated[Literal["job", "never"] | Annotated[float, Field(ge=0)], BeforeValidator(_revalidate)]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)]
Budget = Annotated[float, BeforeValidator(parse_duration), Field(ge=0)]
Seconds = Annotated[float, BeforeValidator(parse_duration), Field(gt=0)]
Share = Annotated[float, BeforeValidator(parse_share), Field(lt=1)]
Names = Annotated[tuple[str, ...], BeforeValidator(_listed)]
Patterns = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], BeforeValidator(_patterns)]
Uids = Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(_listed)]
Paths = Annotated[tuple[Path, ...], BeforeValidator(_homes)]


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
