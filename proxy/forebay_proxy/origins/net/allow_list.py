"""What ``--allow-origin`` says, understood: hosts, wildcard hosts, buckets, networks. Pure.

Forms: ``scheme://host[:port]``, ``https://*.example.org``, ``s3://bucket``, ``10.0.0.0/8``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from urllib.parse import urlsplit

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.origins.net.address_class import IPAddress, literal
from forebay_proxy.wire.urls.shard_url import canonical_authority

__all__ = ["AllowList", "AllowedPlace", "has_user", "place_of"]

DEFAULT_PORTS = {"http": 80, "https": 443}
_BUCKET_SCHEMES = ("s3", "gs", "hf")


@dataclass(frozen=True, slots=True)
class AllowedPlace:
    """Where a request wants to go: scheme, host in lower case without brackets or final dot, port."""

    scheme: str
    host: str
    port: int

    def text(self) -> str:
        """The part of a URL before its path, as a person would write it for ``--allow-origin``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" if DEFAULT_PORTS.get(self.scheme) == self.port else f"{self.scheme}://{host}:{self.port}"


def place_of(url: str) -> AllowedPlace:
    """The place an http(s) URL points to, userinfo left aside.

    Raises ValueError if it is none, or if its host is spelled in a way that one program reads as a name and another as an address
    (127.1, 0x7f.1, full-width digits and dots): the address that is judged must be the one that is dialled.
    """
    parts = urlsplit(url)
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        raise ValueError("not an http(s) URL with a host")
    split = urlsplit("//" + canonical_authority(parts.scheme, parts.netloc))
    return AllowedPlace(parts.scheme, split.hostname or "", split.port or DEFAULT_PORTS[parts.scheme])


def has_user(url: str) -> bool:
    """Whether a URL holds a user or a password."""
    return "@" in url.partition("://")[2].partition("/")[0]


def normal_host(host: str) -> str:
    """One spelling per host: lower case, no brackets, no final dot, IP literals in their shortest form."""
    address = literal(host)
    return str(address) if address is not None else host.lower().removesuffix(".")


class AllowList:
    """The parsed list. ``names`` answers before any look-up, ``covers`` after it."""

    def __init__(self, entries: Iterable[str] = ()) -> None:
        self._exact: set[AllowedPlace] = set()
        self._wildcards: set[AllowedPlace] = set()  # host without its "*"
        self._buckets: set[str] = set()
        self._networks: list[IPv4Network | IPv6Network] = []
        for entry in entries:
            self._add(entry.strip())

    @property
    def has_networks(self) -> bool:
        """Whether a name may still be allowed by the addresses it resolves to."""
        return bool(self._networks)

    def exactly(self, place: AllowedPlace) -> bool:
        """Named word for word, with its port: the only thing that opens loopback."""
        return place in self._exact

    def names(self, place: AllowedPlace) -> bool:
        """Named word for word or by a wildcard."""
        return place in self._exact or any(
            place.scheme == w.scheme and place.port == w.port and place.host.endswith(w.host) for w in self._wildcards
        )

    def names_bucket(self, scheme: str, bucket: str) -> bool:
        return f"{scheme}://{bucket}" in self._buckets

    def covers(self, address: IPAddress) -> bool:
        """Inside an allowed network."""
        return any(address in network for network in self._networks if network.version == address.version)

    def add(self, entries: Iterable[str]) -> None:
        """All of ``entries``, or none: raises ``ConfigError`` for one that cannot be understood."""
        AllowList(entries := tuple(entries))
        for entry in entries:
            self._add(entry.strip())

    def _add(self, entry: str) -> None:
        scheme, separator, rest = entry.partition("://")
        if not separator:
            self._networks.append(_network(entry))
        elif scheme.lower() in _BUCKET_SCHEMES:
            self._buckets.add(f"{scheme.lower()}://{_bucket(entry, rest)}")
        elif rest.startswith("*."):
            place = _place(entry, f"{scheme}://{rest[2:]}")
            self._wildcards.add(AllowedPlace(place.scheme, f".{place.host}", place.port))
        else:
            self._exact.add(_place(entry, entry))


def _bad(entry: str, why: str) -> ConfigError:
    shown = entry.rpartition("@")[2]  # what is before it may be a password
    return ConfigError(
        f"--allow-origin {shown!r}: {why}",
        next_step="write scheme://host[:port], https://*.example.org, s3://bucket or a network such as 10.0.0.0/8",
    )


def _network(entry: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(entry)
    except ValueError as error:
        raise _bad(entry, "neither a URL with a scheme nor a network") from error


def _bucket(entry: str, rest: str) -> str:
    bucket = rest.rstrip("/")
    if not bucket or "/" in bucket or "?" in bucket:
        raise _bad(entry, "names a bucket only, without a key")
    return bucket


def _place(entry: str, url: str) -> AllowedPlace:
    try:
        parts = urlsplit(url)
        place = place_of(url)
    except ValueError as error:
        raise _bad(entry, "not scheme://host[:port] with http or https") from error
    if "*" in place.host:
        raise _bad(entry, 'a "*" may only stand for the first labels, as in https://*.example.org')
    if parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise _bad(entry, "names a host only, without user, path or query")
    return place
