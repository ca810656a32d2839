"""What an ``s3://`` URL may say beyond bucket and key: which endpoint, which credentials, which version. Pure."""

from __future__ import annotations

import re
from typing import Callable, Mapping
from urllib.parse import quote

from forebay_proxy.wire.urls.quoting import InvalidShardUrl, canonical_authority, decoded, printable

__all__ = ["S3_OPTIONS", "canonical_options", "parse_options"]

S3_OPTIONS = ("endpoint", "profile", "region", "unsigned", "requester_pays", "versionId")  # in canonical order
_KNOWN = ", ".join(S3_OPTIONS)
_MAX_VALUE = 1024
_YES = ("1", "true", "requester")  # the last is what the aws command line and the header of a requester-pays request say
_ENDPOINT = re.compile(r"(https?)://([^/?#\\]+)(/[A-Za-z0-9\-._~/]*)?", re.IGNORECASE)


def parse_options(query: str, *, blanks: bool = False) -> dict[str, str]:
    """The options in ``query`` (``name=value&…``), decoded and canonical. Raises ``InvalidShardUrl`` naming the known ones.

    ``blanks``: an option without a value is absent, as our GOPEN_REWRITE rules write it, which cannot leave a name away.
    """
    options: dict[str, str] = {}
    for part in filter(None, query.split("&")):
        name, _, value = part.partition("=")
        if name in options:
            raise InvalidShardUrl(f"the s3 option {name} is given twice")
        if value or not blanks or name not in S3_OPTIONS:
            options[name] = decoded(value)
    return _checked(options)


def canonical_options(options: Mapping[str, str]) -> str:
    """``options`` as a query text in canonical order, flags that are off left out; "" for none. Raises ``InvalidShardUrl``."""
    values = _checked(options)
    return "&".join(f"{name}={quote(values[name], safe='/:')}" for name in S3_OPTIONS if name in values)


def _checked(options: Mapping[str, str]) -> dict[str, str]:
    for name in options:
        if name not in S3_OPTIONS:
            shown = f" {name}" if re.fullmatch(r"[A-Za-z0-9_-]{1,40}", name) else ""
            raise InvalidShardUrl(
                f"unknown s3 option{shown}; known are {_KNOWN} (a key that holds '?' itself is written with one more '?' at the end)"
            )
    values = {name: _VALUES[name](name, value) for name, value in options.items()}
    return {name: value for name, value in values.items() if value}


def _text(name: str, value: str) -> str:
    if not value or len(value) > _MAX_VALUE or not value.isascii() or not printable(value):
        raise InvalidShardUrl(f"the s3 option {name} needs a value of 1 to {_MAX_VALUE} printable ASCII characters")
    return value


def _region(name: str, value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9-]{1,64}", value):
        raise InvalidShardUrl("the s3 option region is a name such as us-east-1")
    return value


def _flag(name: str, value: str) -> str:
    if value.lower() not in (*_YES, "0", "false"):
        raise InvalidShardUrl(f"the s3 option {name} is a flag; write {name}=1")
    return "1" if value.lower() in _YES else ""


def _endpoint(name: str, value: str) -> str:
    """Scheme and host are canonical, so that one endpoint has one name; userinfo is refused, not dropped: it may be a secret key."""
    match = _ENDPOINT.fullmatch(value)
    if not match or "@" in match[2]:
        raise InvalidShardUrl("the s3 option endpoint is a URL without credentials or query, as endpoint=http://host:9000")
    scheme = match[1].lower()
    return f"{scheme}://{canonical_authority(scheme, match[2])}{(match[3] or '').rstrip('/')}"


_VALUES: dict[str, Callable[[str, str], str]] = {
    "endpoint": _endpoint, "profile": _text, "region": _region, "unsigned": _flag, "requester_pays": _flag, "versionId": _text,
}  # fmt: skip
