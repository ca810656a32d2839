"""What people send to our own paths, read and checked: evict lists, rates, origins. Pure."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl

from forebay_proxy.background.verifier import RATE_BYTES_S
from forebay_proxy.core.errors import InvalidRequest

__all__ = ["COMMAND_BODY_BYTES", "MAX_ORIGINS", "parse_origins", "parse_patterns", "parse_rate"]

COMMAND_BODY_BYTES = 1024 * 1024  # an evict list; a pattern says the same in a hundred bytes
MAX_PATTERNS = 10_000
MAX_ORIGINS = 100  # a command line of a person's


def parse_rate(query: str) -> float:
    """Bytes a second from the ``rate`` of a verify request's query; the default without one. Raises ``InvalidRequest``."""
    text = dict(parse_qsl(query)).get("rate", str(RATE_BYTES_S))
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 16 and int(text)):
        raise InvalidRequest(f"rate is {text[:40]!r}, not a number of bytes a second", next_step="leave it out, or write ?rate=500000000")
    return float(text)


def parse_patterns(body: bytes) -> list[str] | None:
    """What an evict body names; None for everything. Raises ``InvalidRequest`` naming the first bad entry."""
    step = 'send {"shards": ["s3://bucket/train-*.tar"]} or {"all": true}'
    wish = _object(body, step)
    return None if wish == {"all": True} and wish["all"] is True else _texts(wish, "shards", MAX_PATTERNS, step)


def parse_origins(body: bytes) -> list[str]:
    """What an allow body names. Raises ``InvalidRequest``."""
    step = 'send {"origins": ["https://host:8443"]}, in the words of --allow-origin'
    return _texts(_object(body, step), "origins", MAX_ORIGINS, step)


def _object(body: bytes, step: str) -> dict[str, Any]:
    try:
        wish = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("the body is not JSON", next_step=step) from error
    return wish if isinstance(wish, dict) else {}


def _texts(wish: dict[str, Any], name: str, most: int, step: str) -> list[str]:
    """The list ``name``, the only member of ``wish``."""
    texts = wish[name] if set(wish) == {name} else None
    if not isinstance(texts, list) or not 0 < len(texts) <= most:
        raise InvalidRequest(f"the body does not name 1 to {most} {name}", next_step=step)
    for index, text in enumerate(texts):
        if not isinstance(text, str) or not text:
            raise InvalidRequest(f"entry {index} of {name} is no text", next_step=step)
    return texts
