"""Which upstream proxy a request goes through: HTTPS_PROXY, HTTP_PROXY, ALL_PROXY and NO_PROXY, as curl, Go and requests read them. Pure.

These are variables of every program, not settings of Forebay. Where the three disagree: lower case wins over upper case, and an empty one
switches a proxy off (curl, urllib); HTTP_PROXY in capitals does not count in a CGI process, where a client's ``Proxy:`` header sets it; a
host in NO_PROXY stands for itself and all below it, with or without a dot in front (curl, urllib), ``*.host`` only for those below (Go);
ports and networks (Go) are understood. A network matches addresses, never names: what they resolve to is the proxy's business. Loopback
goes through no proxy, whatever they say.

The AWS SDK's own calls (STS, SSO, IMDS) read the same variables by themselves.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_network
from urllib.parse import unquote_to_bytes, urlsplit

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.origins.net.address_class import AddressClass, IPAddress, classify, literal
from forebay_proxy.origins.net.allow_list import AllowedPlace, place_of

__all__ = ["Proxies", "Proxy"]

_PROXIED = ("http", "https")


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy the operator named in ``variable``. ``authorization`` is the value of Proxy-Authorization, "" for none: a secret."""

    place: AllowedPlace
    variable: str
    authorization: str = field(default="", repr=False)

    def text(self) -> str:
        """Its address for people, without what it was named with."""
        return f"{self.place.text()} ({self.variable})"


class Proxies:
    """The proxies of one environment."""

    def __init__(self, by_scheme: Mapping[str, Proxy] | None = None, bypass: str = "") -> None:
        self._by_scheme = dict(by_scheme or {})
        self._bypass = [entry for text in re.split(r"[,\s]+", bypass) if (entry := _Entry.of(text)) is not None]

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Proxies:
        """Raises ``ConfigError`` for a proxy that cannot be understood, or speaks a protocol other than HTTP."""
        found: dict[str, Proxy] = {}
        for scheme in _PROXIED:
            name, value = _variable(environ, f"{scheme}_proxy")
            if not name:
                name, value = _variable(environ, "all_proxy")
            if value:
                found[scheme] = _proxy(name, value)
        return cls(found, _variable(environ, "no_proxy")[1])

    def __bool__(self) -> bool:
        return bool(self._by_scheme)

    def through(self, place: AllowedPlace) -> Proxy | None:
        """The proxy on the way to ``place``, None for the direct way."""
        proxy = self._by_scheme.get(place.scheme)
        address = literal(place.host)
        if proxy is None or _is_loopback(place.host, address):
            return None
        return None if any(entry.matches(place, address) for entry in self._bypass) else proxy


@dataclass(frozen=True, slots=True)
class _Entry:
    """One entry of NO_PROXY. ``host`` None: everything."""

    host: str | IPAddress | IPv4Network | IPv6Network | None
    port: int | None = None
    itself: bool = True  # False: only what is below the host

    @classmethod
    def of(cls, text: str) -> _Entry | None:
        """None for an entry that says nothing: everybody skips those."""
        text = text.lower()
        if text == "*":
            return cls(None)
        try:
            if "/" in text:
                return cls(ip_network(text, strict=False))
            address = literal(text)
            if address is not None:  # before the port is looked for: an IPv6 address is full of colons
                return cls(_plain(address))
            host, colon, port = text.rpartition(":")
            host, number = (host, int(port)) if colon else (text, None)
        except ValueError:
            return None
        address = literal(host)
        if address is not None:
            return cls(_plain(address), number)
        name = host.removeprefix("*").strip(".")
        return cls(name, number, itself=not host.startswith("*")) if name else None

    def matches(self, place: AllowedPlace, address: IPAddress | None) -> bool:
        if self.port is not None and self.port != place.port:
            return False
        match self.host:
            case None:
                return True
            case str():
                return (self.itself and place.host == self.host) or place.host.endswith(f".{self.host}")
            case IPv4Network() | IPv6Network():
                return address is not None and _plain(address) in self.host
            case _:
                return address is not None and _plain(address) == self.host


def _variable(environ: Mapping[str, str], name: str) -> tuple[str, str]:
    """(the name that counts, its value); the name is "" if neither spelling is there."""
    if name in environ:
        return name, environ[name].strip()
    upper = name.upper()
    if upper in environ and not (upper == "HTTP_PROXY" and "REQUEST_METHOD" in environ):
        return upper, environ[upper].strip()
    return "", ""


def _proxy(name: str, value: str) -> Proxy:
    url = value if "://" in value else f"http://{value}"
    scheme = url.partition("://")[0].lower()
    if scheme not in _PROXIED and scheme.isalnum():  # else it may be the beginning of a password
        step = f"name an http:// or https:// proxy, or run Forebay with {name} empty"
        raise ConfigError(f"{name} names a {scheme[:10]} proxy; Forebay speaks to http and https proxies", next_step=step)
    try:
        place = place_of(url)
    except ValueError as error:
        # The value stays out of the message: it may hold a password.
        raise ConfigError(f"{name} is not a proxy's address", next_step="write http://[user:password@]host[:port]") from error
    return Proxy(place, name, _authorization(urlsplit(url).netloc.rpartition("@")[0]))


def _authorization(userinfo: str) -> str:
    if not userinfo:
        return ""
    user, _, password = userinfo.partition(":")
    return "Basic " + base64.b64encode(unquote_to_bytes(user) + b":" + unquote_to_bytes(password)).decode("ascii")


def _is_loopback(host: str, address: IPAddress | None) -> bool:
    if address is not None:
        return classify(address) is AddressClass.LOOPBACK
    return host == "localhost" or host.endswith(".localhost")  # RFC 6761


def _plain(address: IPAddress) -> IPAddress:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped
