"""allow.py: what --allow-origin says."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from forebay_proxy.errors import ConfigError
from forebay_proxy.origins.allow import AllowList, place_of


def test_an_exact_entry_names_scheme_host_and_port() -> None:
    """Another port, scheme or host is another place."""
    allow = AllowList(["http://Data.Example.org:8000/"])
    assert allow.exactly(place_of("http://data.example.org:8000/x"))
    for other in ("http://data.example.org/x", "https://data.example.org:8000/x", "http://a.data.example.org:8000/"):
        assert not allow.names(place_of(other))


def test_a_default_port_may_be_left_out() -> None:
    """https://h and https://h:443 are one place."""
    assert AllowList(["https://h"]).exactly(place_of("https://h:443/a"))


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
