"""Where Forebay may go: decided before a look-up, on every DNS answer, on IP literals and on every redirect hop. Opens no connection.

Never: cloud metadata (also by name), link-local, multicast, unspecified, reserved addresses, and the sidecar itself; no flag changes that.
Loopback: only where ``--allow-origin`` names exactly that scheme, host and port. Private ranges: yes, unless ``--strict-origins`` is set
and nothing names them. A redirect never leads from a public host to one that is not.

Under strict origins a *name* is refused before any look-up unless it is named; if the list also holds networks, the look-up decides.

Behind an upstream proxy it is the proxy that looks up and dials, so the address it will go to cannot be judged here. What can be: literals
and names, as ever; and what the name means *here*, if it means anything: where every answer but one is harmless the proxy may still take
that one, so one bad answer refuses the name. A name that is unknown here goes to the proxy: on networks with no way out but a proxy, no
public name resolves, and refusing them would refuse the network. From there on the proxy's own list decides; whoever controls a name's
server can tell the two of us different things anyway.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import ip_address

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.origins.net.address_class import METADATA_NAMES, AddressClass, IPAddress, classify, embedded, literal
from forebay_proxy.origins.net.allow_list import AllowedPlace, AllowList, normal_host, place_of

__all__ = ["Guard", "Hop", "Refused"]

_NEVER = frozenset({
    AddressClass.METADATA, AddressClass.LINK_LOCAL, AddressClass.MULTICAST, AddressClass.UNSPECIFIED, AddressClass.RESERVED,
})  # fmt: skip


class Refused(OSError):
    """Forebay will not go there. An OSError, because it must pass through the resolver of the HTTP client unharmed.

    ``cause`` says what was refused and why, ``next_step`` names the flag that would allow the address, "" where no flag does.
    """

    def __init__(self, cause: str, next_step: str = "") -> None:
        super().__init__(cause)
        self.cause = cause
        self.next_step = next_step


@dataclass(frozen=True, slots=True)
class Hop:
    """One hop: where to, and what is known about how we got there.

    ``vouched``: the operator allowed the shard under another name (its bucket, its service's endpoint). ``came_from``: the class of the
    host that redirected us here, None for the first hop. ``proxy``: the upstream proxy that is dialled instead of the place.
    """

    place: AllowedPlace
    vouched: bool = False
    came_from: AddressClass | None = None
    proxy: AllowedPlace | None = None


class Guard:
    """The address policy. Holds no connection and opens none; one instance serves all origins."""

    def __init__(
        self,
        allow_origin: Iterable[str] = (),
        strict_origins: bool = False,
        own_addresses: Iterable[tuple[str, int]] = (),
        operator_endpoints: Iterable[str] = (),
        *,
        is_local: Callable[[IPAddress], bool] | None = None,
    ) -> None:
        """``own_addresses`` are (host, port) pairs the sidecar listens on; ``operator_endpoints`` URLs of the SDK's configuration.

        ``is_local`` tells whether an address belongs to this machine; asked only about the port of a sidecar that listens everywhere.
        Raises ``ConfigError`` for an entry of either list that cannot be understood.
        """
        self._allow = AllowList(allow_origin)
        self._strict = strict_origins
        self._own: set[tuple[str, int]] = set()
        self._is_local = is_local or _is_local
        self._operator = {_operator_place(url) for url in operator_endpoints}
        for host, port in own_addresses:
            self.add_own(host, port)

    def add_own(self, host: str, port: int) -> None:
        """The sidecar listens on ``host:port`` too (known only once the socket is bound)."""
        self._own.add((normal_host(host), port))

    def allow(self, entries: Iterable[str]) -> None:
        """Somebody with the operator's own rights names more origins, as ``--allow-origin`` does.

        Raises ``ConfigError`` for an entry that cannot be understood, and ``Refused`` under strict origins, whose list is closed.
        """
        if self._strict:
            raise Refused("strict origins allow what the start named, and nothing later", "start the sidecar with --allow-origin")
        self._allow.add(entries)

    def names(self, place: AllowedPlace) -> bool:
        """Whether the operator named this place; the sidecar's own credentials go nowhere else."""
        return place in self._operator or self._allow.names(place)

    def check_bucket(self, scheme: str, bucket: str, named: bool, endpoint: AllowedPlace | None) -> None:
        """May this bucket be asked for at all? ``endpoint``: where it is said to live, None for the service's ordinary place.

        ``named``: the operator named that place. Raises ``Refused`` under strict origins unless a named endpoint or the bucket's own entry
        allows it; an entry for a bucket says nothing about endpoints somebody else names.
        """
        if not self._strict or (named and (endpoint is not None or self._allow.names_bucket(scheme, bucket))):
            return
        wanted = f"{scheme}://{bucket}" if endpoint is None else endpoint.text()
        raise Refused(f"strict origins do not allow {wanted}", f"--allow-origin {wanted} allows it")

    def check(self, hop: Hop) -> None:
        """All that can be said before a look-up; a literal is judged whole. Raises ``Refused``."""
        place = hop.place
        if place.host in METADATA_NAMES:
            raise Refused(f"{place.host} is a cloud metadata service; Forebay never goes there")
        address = literal(place.host)
        if address is not None:
            self.check_address(hop, address)
        elif self._strict and not (hop.vouched or self.names(place) or self._allow.has_networks):
            raise _strict(place)

    def check_address(self, hop: Hop, address: IPAddress | str) -> None:
        """May this trip end at this address? Raises ``Refused``."""
        ip = ip_address(address) if isinstance(address, str) else address
        kind = classify(ip)
        place = hop.place
        if kind in _NEVER:
            raise Refused(f"{place.host} leads to {_shown(place, ip)}{kind.words} address; Forebay never goes there")
        if self._is_own(ip, kind, place.port):
            raise Refused(f"{place.text()} is this Forebay itself", "name the origin, not the proxy")
        if hop.came_from is AddressClass.PUBLIC and kind is not AddressClass.PUBLIC:
            raise Refused(f"a public host redirects to {_shown(place, ip)}{kind.words} address; such a redirect is never followed")
        if kind is AddressClass.LOOPBACK and not self._allow.exactly(place):
            raise Refused(f"{place.host} leads to {_shown(place, ip)}loopback address", f"--allow-origin {place.text()} allows it")
        if self._strict and not (hop.vouched or self.names(place) or self._allow.covers(ip)):
            raise _strict(place)

    def check_unknown(self, hop: Hop) -> None:
        """May this trip go to a proxy with a name that means nothing here? Raises ``Refused``."""
        if self._strict and not (hop.vouched or self.names(hop.place)):  # no network of the list can vouch for it
            raise _strict(hop.place)

    def check_dial(self, hop: Hop, address: IPAddress | str) -> None:
        """May a connection to this address carry the trip? Its end is the place, or the proxy. Raises ``Refused``."""
        if hop.proxy is None:
            self.check_address(hop, address)
            return
        ip = ip_address(address) if isinstance(address, str) else address
        if self._is_own(ip, classify(ip), hop.proxy.port):  # anything else is the operator's choice: most proxies are private
            raise Refused(f"the upstream proxy {hop.proxy.text()} is this Forebay itself", "name the proxy, not Forebay")

    def permitted(self, hop: Hop, addresses: Iterable[str]) -> list[str]:
        """Those of the DNS answers this trip may dial; raises ``Refused`` (the last reason) when there is none."""
        allowed: list[str] = []
        reason: Refused | None = None
        for address in addresses:
            try:
                self.check_dial(hop, address)
                allowed.append(address)
            except Refused as refused:
                reason = refused
        if not allowed and reason is not None:
            raise reason
        return allowed

    def _is_own(self, ip: IPAddress, kind: AddressClass, port: int) -> bool:
        hosts = {host for host, own_port in self._own if own_port == port}
        if not hosts:
            return False
        # Our port on loopback is refused whatever its address: nobody means another program that took the same port beside us.
        if kind is AddressClass.LOOPBACK:
            return True
        spellings = [ip, *embedded(ip)]
        everywhere = bool(hosts & {"0.0.0.0", "::"})  # noqa: S104
        return any(str(each) in hosts or (everywhere and self._is_local(each)) for each in spellings)


_ENDPOINTS = "see AWS_ENDPOINT_URL, AWS_ENDPOINT_URL_S3, STORAGE_EMULATOR_HOST and HF_ENDPOINT"


def _operator_place(url: str) -> AllowedPlace:
    try:
        return place_of(url)
    except ValueError as error:
        # The value stays out of the message: people write keys into such URLs.
        raise ConfigError("an endpoint in the environment is not an http(s) URL", next_step=_ENDPOINTS) from error


def _is_local(ip: IPAddress) -> bool:
    """Whether an interface of this machine has the address: only then can it be bound."""
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(ip), 0))
        except OSError:
            return False
    return True


def _strict(place: AllowedPlace) -> Refused:
    return Refused(f"strict origins do not allow {place.text()}", f"--allow-origin {place.text()} allows it")


def _shown(place: AllowedPlace, ip: IPAddress) -> str:
    article = "a "
    return article if literal(place.host) is not None else f"{ip}, {article}"
