"""What a setting can be: each kind of value with its parser, and how a field describes itself. Pure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from forebay_proxy.core.quantities import CacheLimit, parse_duration, parse_limit, parse_share

__all__ = [
    "Budget", "Connections", "Directory", "Endpoint", "File", "Host", "Limit", "LogLevel", "Names", "Paths", "Patterns",
    "Port", "Revalidate", "Seconds", "Share", "Socket", "Uids", "setting",
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
