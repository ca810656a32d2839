"""Percent-encoding, the characters a shard URL may hold, and its ``host[:port]`` in the one canonical spelling. Pure.

Two kinds of text are told apart everywhere: *literal* (an S3 key as the aws command line takes it, where ``%`` is an ordinary character)
and *encoded* (the path of an http URL, where ``%2F`` stays ``%2F`` because only its origin knows what it means).
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from urllib.parse import quote, unquote_to_bytes

__all__ = [
    "MAX_URL_BYTES", "InvalidShardUrl", "canonical_authority", "check_text", "checked_key", "decoded", "encoded", "printable", "quoted",
]  # fmt: skip

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


_DEFAULT_PORTS = {"http": 80, "https": 443}
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.ASCII)
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*", re.ASCII)
_MAX_HOST = 253  # RFC 1035; also keeps the IDNA codec, which is quadratic, short


def canonical_authority(scheme: str, authority: str) -> str:
    """``authority`` of an http or https URL, canonical.

    Messages repeat nothing of it: a password with a slash in it would look like a port.
    """
    host, port = _split(authority.rpartition("@")[2])
    host = _ipv6(host) if host.startswith("[") else _name(host)
    number = _port(port)
    return host if number in (None, _DEFAULT_PORTS[scheme]) else f"{host}:{number}"


def _split(authority: str) -> tuple[str, str]:
    if authority.startswith("["):
        host, bracket, port = authority.partition("]")
        if not bracket or (port and not port.startswith(":")):
            raise InvalidShardUrl("an IPv6 address is written in brackets, then the port: http://[::1]:8080/path")
        return host + bracket, port[1:]
    host, _, port = authority.partition(":")
    if ":" in port:
        raise InvalidShardUrl("the host holds more than one colon; an IPv6 address is written in brackets: http://[::1]:8080/path")
    return host, port


def _port(text: str) -> int | None:
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 0 < int(text) < 65536):
        raise InvalidShardUrl("the port is not a number from 1 to 65535")
    return int(text)


def _ipv6(bracketed: str) -> str:
    try:
        address = ipaddress.IPv6Address(bracketed[1:-1].partition("%")[0])
    except ValueError:
        raise InvalidShardUrl("the address in brackets is not IPv6; write http://[2001:db8::1]/path") from None
    if "%" in bracketed:
        raise InvalidShardUrl("an IPv6 zone (the part after %) names an interface of one machine; write the address without it")
    return f"[{address.compressed}]"


def _name(host: str) -> str:
    ascii_host = _ascii(host).lower()
    ascii_host = ascii_host[:-1] if ascii_host.endswith(".") else ascii_host  # the DNS root; the same host without it
    if not ascii_host:
        raise InvalidShardUrl("the URL has no host; write http://host[:port]/path")
    labels = ascii_host.split(".")
    if len(ascii_host) > _MAX_HOST or not all(_LABEL.fullmatch(label) for label in labels):
        raise InvalidShardUrl("the host is not a name or an address; use letters, digits, '-', '_' and '.'")
    return _ipv4(ascii_host) if _NUMBER.fullmatch(labels[-1]) else ascii_host


def _ipv4(host: str) -> str:
    """Only ``a.b.c.d``: resolvers also read 127.1, 0x7f.1 and 2130706433, which would be other names for an address checked elsewhere."""
    try:
        return str(ipaddress.IPv4Address(host))
    except ValueError:
        raise InvalidShardUrl("a host that ends in a number must be an IPv4 address in four decimal parts, as 192.0.2.7") from None


def _ascii(host: str) -> str:
    if host.isascii():
        return host
    try:
        encoded = host[: _MAX_HOST + 1].encode("idna")
        # Python knows IDNA 2003, which folds some letters into others (ß into ss): there curl and browsers would go to another host.
        if encoded.decode("idna") == host.lower():
            return encoded.decode("ascii")
    except UnicodeError:
        pass
    raise InvalidShardUrl("the international host name has no certain ASCII form; write its xn-- form")
