"""allow.py: what --allow-origin says."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.origins.net.allow_list import AllowedPlace, AllowList, place_of


def test_an_exact_entry_names_scheme_host_and_port() -> None:
    """Another port, scheme or host is another place."""
    allow = AllowList(["http://Data.Example.org:8000/"])
    assert allow.exactly(place_of("http://data.example.org:8000/x"))
    for other in ("http://data.example.org/x", "https://data.example.org:8000/x", "http://a.data.example.org:8000/"):
        assert not allow.names(place_of(other))


def test_a_wildcard_stands_for_the_first_labels() -> None:
    """*.example.org names hosts below it, not itself, and never opens loopback."""
    allow = AllowList(["https://*.example.org"])
    assert allow.names(place_of("https://a.b.example.org/"))
    assert not allow.names(place_of("https://example.org/"))
    assert not allow.names(place_of("https://evilexample.org/"))
    assert not allow.exactly(place_of("https://a.example.org/"))


def test_buckets_and_networks() -> None:
    """s3://bucket names one bucket; a network covers its addresses."""
    allow = AllowList(["s3://data", "10.0.0.0/8", "fd00::/8"])
    assert allow.names_bucket("s3", "data")
    assert not allow.names_bucket("s3", "data2")
    assert allow.covers(ip_address("10.1.2.3"))
    assert allow.covers(ip_address("fd00::1"))
    assert not allow.covers(ip_address("11.0.0.1"))


def test_ipv6_spellings_are_one_place() -> None:
    """[0:0::1] and [::1] are the same host."""
    assert AllowList(["http://[0:0::1]:80"]).exactly(place_of("http://[::1]/"))


@pytest.mark.parametrize(
    "entry",
    ["", "host", "ftp://h", "http://", "http://h/path", "http://u@h", "http://a.*.org", "s3://", "s3://b/key", "http://h:x", "10.0.0.1/8"],
)
def test_nonsense_is_refused_with_the_forms(entry: str) -> None:
    """An entry that cannot be understood ends the start and names the forms."""
    with pytest.raises(ConfigError) as refused:
        AllowList([entry])
    assert "s3://bucket" in refused.value.next_step


def test_a_password_in_an_entry_is_not_repeated() -> None:
    """It is refused because of it."""
    with pytest.raises(ConfigError, match=r"host\.example") as refused:
        AllowList(["https://user:hush-hush@host.example"])
    assert "hush-hush" not in str(refused.value)


@pytest.mark.parametrize(
    "host",
    [
        "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.1", "0177.0.0.1", "127.0.0.1.", "１２７.0.0.1", "169。254。169。254",
        "ｍetadata.google.internal", "[fe80::1%25eth0]", "[::1", "a..b", "a b", "good.example\\@evil.example", "%31%32%37.0.0.1",
    ],
)  # fmt: skip
def test_a_host_two_programs_may_read_differently_is_one_of_the_plain_ones_or_none(host: str) -> None:
    """Short, octal, hexadecimal, full-width and zoned spellings are refused, or come out as what they are dialled as."""
    try:
        place = place_of(f"http://{host}/x")
    except ValueError:
        return
    assert place.host in ("127.0.0.1", "metadata.google.internal", "169.254.169.254", "evil.example")


def test_case_final_dot_and_default_port_make_no_other_place() -> None:
    """One host, one place, however it is written."""
    assert place_of("http://EXAMPLE.org./x") == place_of("http://user@example.ORG:80/") == AllowedPlace("http", "example.org", 80)


@given(st.integers(0, 2**32 - 1), st.sampled_from(["{0}", "0x{0:x}", "0{0:o}", "{1}.{2}", "0x{1:x}.{2}", "{1}.{3}.{4}", "0{1:o}.{3}.{4}"]))
def test_no_short_spelling_of_an_address_is_a_name(number: int, form: str) -> None:
    """What only a resolver takes for an address never reaches one."""
    first, rest, second, low = number >> 24, number & 0xFFFFFF, number >> 16 & 0xFF, number & 0xFFFF
    with pytest.raises(ValueError, match="IPv4"):
        place_of(f"http://{form.format(number, first, rest, second, low)}/")
