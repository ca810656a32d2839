"""What kind of place an IP address is: metadata service, link-local, loopback, private, public. Pure.

IPv6 has several ways to write an IPv4 address (mapped, compatible, translated, NAT64, 6to4, Teredo, ISATAP). Each is unwrapped and the
*more dangerous* of the readings counts: a router on the way may unwrap it too. Numbers only a resolver would take for an address (127.1,
0x7f.1, 2130706433) are no hosts at all: ``wire.hosts`` refuses them in URLs, ``allow.place_of`` in redirects and endpoints.
"""

from __future__ import annotations

from enum import IntEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

__all__ = ["METADATA_NAMES", "AddressClass", "IPAddress", "classify", "embedded", "literal"]

IPAddress = IPv4Address | IPv6Address


class AddressClass(IntEnum):
    """Ordered from harmless to never: of two readings of one address the greater counts."""

    PUBLIC = 0
    PRIVATE = 1  # RFC 1918, carrier-grade NAT, unique local, benchmarking nets, and everything else that is not globally reachable
    LOOPBACK = 2
    RESERVED = 3  # broadcast and class E: nothing lives there
    MULTICAST = 4
    UNSPECIFIED = 5  # 0.0.0.0/8 and ::, which Linux connects to this very host
    LINK_LOCAL = 6
    METADATA = 7

    @property
    def words(self) -> str:
        return self.name.lower().replace("_", "-")


# Services that hand out the machine's credentials to every process on it. Most addresses are link-local already; here are the others, and
# the link-local ones too, so that the refusal can name the service.
_METADATA = frozenset(
    ip_address(text)
    for text in (
        "169.254.169.254",  # AWS, Azure, GCP, OpenStack, most others
        "169.254.170.2",  # AWS ECS task credentials
        "169.254.170.23",  # AWS EKS pod identity
        "fd00:ec2::254",  # AWS over IPv6
        "fd00:ec2::23",  # AWS EKS pod identity over IPv6
        "fd20:ce::254",  # GCP over IPv6
        "100.100.100.200",  # Alibaba Cloud
        "168.63.129.16",  # Azure's wire server, a public address
        "192.0.0.192",  # Oracle Cloud, older images
        "169.254.42.42",  # Scaleway
        "fd00:42::42",  # Scaleway over IPv6
    )
)

# Names that lead to a metadata service from inside a cloud; refused by name, before any look-up (design: who asks has already told).
METADATA_NAMES = frozenset({
    "metadata.google.internal", "metadata.goog", "metadata", "instance-data", "instance-data.ec2.internal", "metadata.azure.internal",
    "metadata.tencentyun.com", "metadata.packet.net", "metadata.platformequinix.com",
})  # fmt: skip

_THIS_NETWORK = IPv4Network("0.0.0.0/8")
_CLASS_E = IPv4Network("240.0.0.0/4")
_SITE_LOCAL = IPv6Network("fec0::/10")
_EMBEDDED_LOW = (IPv6Network("64:ff9b::/96"), IPv6Network("::/96"), IPv6Network("::ffff:0:0:0/96"))  # NAT64, compatible, translated (SIIT)
_NAT64_LOCAL = IPv6Network("64:ff9b:1::/48")  # RFC 8215: whatever length of prefix (RFC 6052) its operator took
_ISATAP = frozenset({0x00005EFE, 0x02005EFE})  # RFC 5214: the third quarter, before the IPv4 address


def literal(host: str) -> IPAddress | None:
    """The address ``host`` spells out (brackets and zone allowed), None for a name."""
    try:
        return ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


def classify(address: IPAddress | str) -> AddressClass:
    """The class of an address; raises ValueError for text that is not one."""
    ip = ip_address(address) if isinstance(address, str) else address
    if isinstance(ip, IPv4Address):
        return _classify_v4(ip)
    return max([_classify_v6(ip), *(_classify_v4(inner) for inner in embedded(ip))])


def _classify_v4(ip: IPv4Address) -> AddressClass:
    if ip in _METADATA:
        return AddressClass.METADATA
    if ip in _THIS_NETWORK:
        return AddressClass.UNSPECIFIED
    if ip in _CLASS_E:
        return AddressClass.RESERVED
    return _common(ip)


def _classify_v6(ip: IPv6Address) -> AddressClass:
    plain = IPv6Address(int(ip))  # without the zone, or fd00:ec2::254%eth0 would be unknown
    if plain in _METADATA:
        return AddressClass.METADATA
    if plain == IPv6Address(0):
        return AddressClass.UNSPECIFIED
    if plain == IPv6Address(1):
        return AddressClass.LOOPBACK
    if any(plain in net for net in _EMBEDDED_LOW) or plain.ipv4_mapped is not None or plain.sixtofour is not None:
        return AddressClass.PUBLIC  # nothing of its own to say: the IPv4 address inside decides
    if plain in _SITE_LOCAL or plain in _NAT64_LOCAL:
        return AddressClass.PRIVATE
    return _common(plain)


def _common(ip: IPAddress) -> AddressClass:
    if ip.is_link_local:
        return AddressClass.LINK_LOCAL
    if ip.is_multicast:
        return AddressClass.MULTICAST
    if ip.is_loopback:
        return AddressClass.LOOPBACK
    return AddressClass.PUBLIC if ip.is_global else AddressClass.PRIVATE


def embedded(ip: IPAddress) -> list[IPv4Address]:
    """Every IPv4 address that a router on the way could read out of an IPv6 one; none for IPv4."""
    if isinstance(ip, IPv4Address):
        return []
    number = int(ip)  # without the zone
    plain = IPv6Address(number)
    found = [plain.ipv4_mapped, plain.sixtofour, *(plain.teredo or ())]
    low = IPv4Address(number & 0xFFFFFFFF)
    if (any(plain in net for net in _EMBEDDED_LOW) and number > 1) or (number >> 32) & 0xFFFFFFFF in _ISATAP:
        found.append(low)
    if plain in _NAT64_LOCAL:
        without_u = (number >> 64) << 56 | (number & (1 << 56) - 1)  # RFC 6052: bits 64 to 71 are no part of the address
        readings = [low, *(IPv4Address(without_u >> (120 - prefix - 32) & 0xFFFFFFFF) for prefix in (48, 56, 64))]
        # Nothing lives in 0.0.0.0/8, and the other lengths read most addresses as one of there: a gateway's own would all be refused.
        found += [reading for reading in readings if reading not in _THIS_NETWORK]
    return [inner for inner in found if inner is not None]
