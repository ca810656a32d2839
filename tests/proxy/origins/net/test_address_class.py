"""addresses.py: which kind of place an address is."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.origins.net.address_class import AddressClass, classify, embedded, literal

CASES = {
    AddressClass.PUBLIC: ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808", "2002:808:808::1"],
    AddressClass.PRIVATE: [
        "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "198.18.0.1", "fc00::1", "fd12::1", "fec0::1", "::ffff:10.0.0.1",
        "64:ff9b::a00:1", "2002:a00:1::1", "2001:db8::1",
        "64:ff9b:1::808:808", "64:ff9b:1:808:8:800::",  # a gateway of this network: private, whoever is behind it
    ],
    AddressClass.LOOPBACK: ["127.0.0.1", "127.255.255.254", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::", "::127.0.0.1"],
    AddressClass.RESERVED: ["240.0.0.1", "255.255.255.255"],
    AddressClass.MULTICAST: ["224.0.0.1", "239.1.2.3", "ff02::1", "::ffff:224.0.0.1"],
    AddressClass.UNSPECIFIED: ["0.0.0.0", "0.1.2.3", "::", "::ffff:0.0.0.0"],
    AddressClass.LINK_LOCAL: ["169.254.1.1", "fe80::1", "fe80::1%eth0", "::ffff:169.254.1.1"],
    AddressClass.METADATA: [
        "169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254", "fd20:ce::254",
        "fd00:ec2::254%1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::1", "::ffff:0:169.254.169.254",
        "64:ff9b:1::a9fe:a9fe", "64:ff9b:1:a9fe:a9:fe00::", "64:ff9b:1:a9:fe:a9fe::", "2606:4700::5efe:a9fe:a9fe",
        "2606:4700::200:5efe:a9fe:a9fe", "2001:0:a9fe:a9fe::1",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in CASES.items() for text in texts])
def test_each_form_has_its_class(kind: AddressClass, text: str) -> None:
    """An address is what it is in whatever way it is written."""
    assert classify(text) is kind


def _rfc6052(number: int) -> list[str]:
    """The last 80 bits of an address whose NAT64 prefix has 48, 56 and 64 bits, after the table in RFC 6052 (2.2)."""
    a, b, c, d = number.to_bytes(4, "big")
    return [
        f"{a:02x}{b:02x}:00{c:02x}:{d:02x}00:0:0",
        f"00{a:02x}:00{b:02x}:{c:02x}{d:02x}:0:0",
        f"0000:00{a:02x}:{b:02x}{c:02x}:{d:02x}00:0",
    ]


@given(st.integers(0, 2**32 - 1))
def test_an_embedded_address_is_never_more_harmless(number: int) -> None:
    """Mapped, NAT64, 6to4 and translated forms are at least as dangerous as the IPv4 address inside."""
    inner = IPv4Address(number)
    forms = [
        IPv6Address((0xFFFF << 32) | number),
        IPv6Address(int(IPv6Address("64:ff9b::")) | number),
        IPv6Address((0x2002 << 112) | (number << 80)),
        IPv6Address((0xFFFF << 48) | number),
        IPv6Address((0x20010000 << 96) | (number << 64)),  # Teredo's server
        IPv6Address((0x20010000 << 96) | (number ^ 0xFFFFFFFF)),  # and its client, who is hidden behind an exclusive or
        IPv6Address(int(IPv6Address("2606:4700::5efe:0:0")) | number),
        *(IPv6Address(f"64:ff9b:1:{tail}") for tail in _rfc6052(number) if number >> 24),
    ]
    for form in forms:
        assert classify(form) >= classify(inner)


@given(st.ip_addresses(v=6))
def test_what_is_embedded_is_judged(address: IPv6Address) -> None:
    """No reading of an address is more dangerous than its class."""
    assert all(classify(inner) <= classify(address) for inner in embedded(address))


@given(st.ip_addresses())
def test_every_address_has_a_class(address: IPv4Address | IPv6Address) -> None:
    """The classifier is total, and agrees with itself on text."""
    assert classify(address) is classify(str(address))


def test_only_literals_are_literals() -> None:
    """Names, and numbers only a resolver would understand, are not addresses."""
    assert literal("[::1]") == IPv6Address("::1")
    assert literal("127.0.0.1") == IPv4Address("127.0.0.1")
    assert literal("127.1") is literal("2130706433") is literal("localhost") is None
