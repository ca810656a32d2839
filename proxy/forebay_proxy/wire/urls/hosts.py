"""``host[:port]`` in its one canonical spelling: lower case, no userinfo, no default port, no trailing dot. Pure."""

from __future__ import annotations

import ipaddress
import re

from forebay_proxy.wire.urls.quoting import InvalidShardUrl

__all__ = ["canonical_authority"]

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
