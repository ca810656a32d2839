"""Percent-encoding and the characters a shard URL may hold. Pure.

Two kinds of text are told apart everywhere: *literal* (an S3 key as the aws command line takes it, where ``%`` is an ordinary character)
and *encoded* (the path of an http URL, where ``%2F`` stays ``%2F`` because only its origin knows what it means).
"""

from __future__ import annotations

import re
import unicodedata
from urllib.parse import quote, unquote_to_bytes

__all__ = ["MAX_URL_BYTES", "InvalidShardUrl", "check_text", "checked_key", "decoded", "encoded", "printable", "quoted"]

MAX_URL_BYTES = 8192  # servers, curl's users and log lines cope with this; a longer name is almost always a mistake

# What an emitted URL may show as it is: no quote, space, $, brace, bracket, backslash, backtick or angle bracket, because older
# WebDataset pastes URLs into sh -c "curl '…'", and curl expands {} and [] itself. A semicolon stays: to an origin `;` and `%3B` are two
# things, quotes hold it in a shell, and what GOPEN_REWRITE splits at semicolons is its own value, which holds no shard's path.
_NOT_SAFE = re.compile(r"[^A-Za-z0-9\-._~!*(),:;@&=+/?%]")
_KEY_SAFE = "/=:@,+"
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


class InvalidShardUrl(ValueError):
    """The text cannot name a shard, or a known command is used wrongly.

    The message says what is wrong and what would be right. It never repeats userinfo, a query, or a header.
    """


def check_text(text: str) -> None:
    """Raise ``InvalidShardUrl`` for text that is too long, holds control characters, or is no text at all."""
    if len(text) > MAX_URL_BYTES or len(_octets(text)) > MAX_URL_BYTES:
        raise InvalidShardUrl(f"the URL is longer than {MAX_URL_BYTES} bytes; a shard needs a shorter name")
    if not printable(text):
        raise InvalidShardUrl("the URL holds a control character; percent-encode it (http, https) or rename the object")


def printable(text: str) -> bool:
    """Whether ``text`` is free of control characters (C0, DEL, and C1, which terminals obey too)."""
    return text.isprintable() or not any(unicodedata.category(character) == "Cc" for character in text)


def encoded(text: str) -> str:
    """``text`` of an http URL with only those characters encoded that no emitted URL may show; existing escapes stay as they are."""
    if _BAD_ESCAPE.search(text):
        raise InvalidShardUrl("a percent sign is not followed by two hexadecimal digits; write a literal percent sign as %25")
    return _NOT_SAFE.sub(lambda match: "".join(f"%{octet:02X}" for octet in _octets(match.group())), text)


def quoted(literal: str) -> str:
    """A literal key as URL path text; the same key always gives the same text."""
    return quote(_octets(literal), safe=_KEY_SAFE)


def decoded(text: str) -> str:
    """The literal text behind ``text``; octets that are not UTF-8 become lone surrogates, as in Python's file names."""
    if _BAD_ESCAPE.search(text):
        raise InvalidShardUrl("a percent sign is not followed by two hexadecimal digits; write a literal percent sign as %25")
    return unquote_to_bytes(_octets(text)).decode("utf-8", "surrogateescape")


def checked_key(key: str) -> str:
    """``key`` itself, once it is known to name one object and to survive an HTTP client unchanged."""
    if not key:
        raise InvalidShardUrl("the URL names no object; write scheme://bucket/path/to/shard.tar")
    if not printable(key):
        raise InvalidShardUrl("the object's name holds a control character, which Forebay does not pass on; rename the object")
    if not {".", ".."}.isdisjoint(key.split("/")):
        raise InvalidShardUrl("a path segment is '.' or '..', which HTTP clients remove; write the path without it")
    return key


def _octets(text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise InvalidShardUrl("the URL holds a lone surrogate, which is not a character") from None
