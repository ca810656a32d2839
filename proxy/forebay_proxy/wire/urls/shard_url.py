"""One shard's URL in its three spellings: what people write (origin), what clients ask us for (proxy), and the parts. Pure.

http and https keep path and query as received. s3, gs and hf URLs are *literal*, as their command lines read them: ``%``, ``#`` and
spaces are ordinary characters of the key, and only s3 knows options, which follow the last ``?``; a key that holds a ``?`` itself is
therefore written with one more ``?`` at its end. file URLs are percent-encoded (RFC 8089). So *literal* and *encoded* texts are told apart
everywhere: in the path of an http URL ``%2F`` stays ``%2F``, because only its origin knows what it means.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from dataclasses import dataclass, field
from typing import Callable, Mapping
from urllib.parse import quote, unquote_to_bytes

__all__ = [
    "MAX_URL_BYTES", "S3_OPTIONS", "SCHEMES", "InvalidShardUrl", "ShardUrl", "canonical_authority", "canonical_options", "check_text",
    "checked_key", "decoded", "encoded", "file_url", "object_url", "parse_options", "parse_origin_url", "parse_proxy_target", "printable",
    "proxy_url", "quoted",
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


SCHEMES = ("http", "https", "s3", "gs", "hf", "file")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}", re.ASCII)


@dataclass(frozen=True)
class ShardUrl:
    """Where a shard lives, canonical. Built by the functions of this module; equal URLs compare equal.

    ``scheme`` is one of ``SCHEMES``. ``authority`` is ``host[:port]`` (http, https), the bucket (s3, gs), the first part (hf: "datasets")
    or "" (file). ``path`` starts with "/" and is percent-encoded. ``query`` has no "?": as received (http, https), options in canonical
    order (s3), else "".
    """

    scheme: str
    authority: str
    path: str
    query: str = field(default="", repr=False)  # may hold a signature

    def text(self) -> str:
        """The origin URL; ``parse_origin_url`` reads it back to an equal value."""
        if self.scheme in ("http", "https", "file"):
            return f"{self.scheme}://{self.authority}{self._tail()}"
        key = self.key()
        mark = "?" if self.query or (self.scheme == "s3" and "?" in key) else ""
        return f"{self.scheme}://{self.authority}/{key}{mark}{self.query}"

    def proxy_path(self) -> str:
        """The request target to ask a Forebay for; shell-safe, and its path ends as the shard's name does."""
        authority = self.authority.replace("[", "%5B").replace("]", "%5D")  # curl would read [::1] as a range of its own
        return f"/{self.scheme}{'/' if authority else ''}{authority}{self._tail()}"

    def options(self) -> dict[str, str]:
        """The s3 options, decoded; empty for every other scheme."""
        return parse_options(self.query) if self.scheme == "s3" else {}

    def key(self) -> str:
        """The literal name without its leading slash. Octets that are not UTF-8 (file only) are lone surrogates."""
        return decoded(self.path[1:])

    def _tail(self) -> str:
        return f"{self.path}?{self.query}" if self.query else self.path


def parse_origin_url(text: str) -> ShardUrl:
    """The shard that an origin URL names; userinfo and fragment of http URLs are dropped.

    Raises ``InvalidShardUrl``.
    """
    check_text(text)
    scheme, _, rest = text.partition(":")
    parse = _ORIGINS.get(scheme.lower())
    if parse is None or not (rest.startswith("//") or scheme.lower() == "file"):
        raise InvalidShardUrl(_unknown(scheme if rest.startswith("//") else ""))
    return _fitting(parse(scheme.lower(), rest))


def parse_proxy_target(raw_target: str) -> ShardUrl:
    """The shard that a raw request target (``/https/host/path?query``, nothing decoded) asks for. Raises ``InvalidShardUrl``."""
    check_text(raw_target)
    if "#" in raw_target:
        raise InvalidShardUrl("a request target holds no '#'; write it as %23")
    path, _, query = raw_target.partition("?")
    slash, scheme, rest = path[:1], *_head(path[1:])
    parse = _TARGETS.get(scheme.lower())
    if parse is None or slash != "/":
        raise InvalidShardUrl(_unknown(scheme))
    return _fitting(parse(scheme.lower(), rest[1:], query))


def proxy_url(base: str, url: ShardUrl) -> str:
    """``url`` through the Forebay at ``base`` ("http://127.0.0.1:7070")."""
    return base.rstrip("/") + url.proxy_path()


def object_url(scheme: str, bucket: str, key: str, options: Mapping[str, str] | None = None) -> ShardUrl:
    """The URL of a literal ``key`` in an s3 or gs ``bucket`` (hf: in the first part). Raises ``InvalidShardUrl``."""
    check_text(key)
    if not _BUCKET.fullmatch(bucket):
        raise InvalidShardUrl(_bad_bucket(scheme, bucket))
    try:
        checked_key(key).encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidShardUrl(f"the name of a {scheme} object is UTF-8 text; this one is not") from None
    return _fitting(ShardUrl(scheme, bucket, "/" + quoted(key), canonical_options(options or {})))


def file_url(path: str) -> ShardUrl:
    """The URL of the file at an absolute, literal ``path``; repeated slashes are one. Raises ``InvalidShardUrl``."""
    if not path.startswith("/"):
        raise InvalidShardUrl("a file URL needs an absolute path: file:///nas/shard.tar")
    key = checked_key(re.sub("/+", "/", path)[1:])
    return _fitting(ShardUrl("file", "", "/" + quoted(key)))


def _origin_http(scheme: str, rest: str) -> ShardUrl:
    place, _, query = rest[2:].partition("#")[0].partition("?")
    return _http(scheme, *_head(place), query)


def _target_http(scheme: str, rest: str, query: str) -> ShardUrl:
    authority, path = _head(rest)
    return _http(scheme, decoded(authority), path, query)


def _http(scheme: str, authority: str, path: str, query: str) -> ShardUrl:
    return ShardUrl(scheme, canonical_authority(scheme, authority), _without_dots(encoded(path)), encoded(query))


def _origin_s3(scheme: str, rest: str) -> ShardUrl:
    place, mark, query = rest[2:].rpartition("?")
    bucket, key = _head(place if mark else query)
    return object_url(scheme, bucket, key[1:], parse_options(query) if mark else {})


def _target_s3(scheme: str, rest: str, query: str) -> ShardUrl:
    bucket, key = _head(rest)
    return object_url(scheme, decoded(bucket), decoded(key[1:]), parse_options(query, blanks=True))


def _origin_object(scheme: str, rest: str) -> ShardUrl:
    bucket, key = _head(rest[2:])
    return object_url(scheme, bucket, key[1:])


def _target_object(scheme: str, rest: str, query: str) -> ShardUrl:
    _no_query(scheme, query)
    bucket, key = _head(rest)
    return object_url(scheme, decoded(bucket), decoded(key[1:]))


def _origin_file(scheme: str, rest: str) -> ShardUrl:
    path, _, query = rest.partition("#")[0].partition("?")
    _no_query(scheme, query)
    host, path = _head(path[2:]) if path.startswith("//") else ("", path)
    if host.lower() not in ("", "localhost"):
        raise InvalidShardUrl("a file URL names no host; write three slashes: file:///nas/shard.tar")
    return file_url(decoded(path))


def _target_file(scheme: str, rest: str, query: str) -> ShardUrl:
    _no_query(scheme, query)
    return file_url("/" + decoded(rest))


_ORIGINS: dict[str, Callable[[str, str], ShardUrl]] = {
    "http": _origin_http, "https": _origin_http, "s3": _origin_s3, "gs": _origin_object, "hf": _origin_object, "file": _origin_file,
}  # fmt: skip
_TARGETS: dict[str, Callable[[str, str, str], ShardUrl]] = {
    "http": _target_http, "https": _target_http, "s3": _target_s3, "gs": _target_object, "hf": _target_object, "file": _target_file,
}  # fmt: skip


def _head(text: str) -> tuple[str, str]:
    """``text`` cut before its first slash."""
    head, slash, tail = text.partition("/")
    return head, slash + tail


def _without_dots(path: str) -> str:
    """``path`` less its dot segments (RFC 3986, 5.2.4), as every HTTP client sends it; at least "/"."""
    kept: list[str] = []
    segments = path.split("/")[1:]
    for segment in segments:
        if _plain(segment) == "..":
            del kept[-1:]
        elif _plain(segment) != ".":
            kept.append(segment)
    if segments and _plain(segments[-1]) in (".", ".."):
        kept.append("")
    return "/" + "/".join(kept)


def _plain(segment: str) -> str:
    return segment.lower().replace("%2e", ".")  # clients treat %2e%2e as dots too


def _no_query(scheme: str, query: str) -> None:
    if query:
        raise InvalidShardUrl(f"a {scheme} URL takes no query; a question mark that belongs to the name is written %3F")


def _fitting(url: ShardUrl) -> ShardUrl:
    if len(url.proxy_path()) > MAX_URL_BYTES:
        raise InvalidShardUrl(f"the URL is longer than {MAX_URL_BYTES} bytes once percent-encoded; a shard needs a shorter name")
    return url


# What people write for stores that are reached under another scheme.
_AZURE = "write the blob's https URL with its SAS: https://ACCOUNT.blob.core.windows.net/CONTAINER/shard.tar?sv=...&sig=..."
_OTHER_S3 = "name the store's S3 endpoint: s3://bucket/shard.tar?endpoint=https://HOST"
_HINTS = {
    **dict.fromkeys(("az", "azure", "abfs", "abfss", "wasb", "wasbs"), _AZURE),
    **dict.fromkeys(("r2", "oss", "tos", "cos", "obs", "s3a", "s3n"), _OTHER_S3),
}


def _unknown(scheme: str) -> str:
    hint = _HINTS.get(scheme.lower())
    if hint is not None:
        return f"{scheme.lower()} URLs are not read; {hint}"
    shown = f" {scheme!r}" if re.fullmatch(r"[A-Za-z0-9+.-]{1,20}", scheme) else ""
    return f"unknown scheme{shown}; Forebay reads {', '.join(SCHEMES)}, as s3://bucket/shard.tar or https://host/shard.tar"


def _bad_bucket(scheme: str, bucket: str) -> str:
    if not bucket:
        return f"the bucket is empty; write {scheme}://bucket/path/to/shard.tar"
    if "@" in bucket:
        return f"{scheme}:// URLs hold no credentials; name a profile (?profile=name) or use the environment of the sidecar"
    return "the bucket's name may hold letters, digits, '.', '-' and '_'"
