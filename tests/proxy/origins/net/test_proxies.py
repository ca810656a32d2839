"""proxies.py: which upstream proxy a request goes through."""

from __future__ import annotations

import os
import urllib.request
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.origins.net.allow_list import place_of
from forebay_proxy.origins.net.egress import Egress
from forebay_proxy.origins.net.proxies import Proxies

BOTH = {"HTTP_PROXY": "http://web:3128", "HTTPS_PROXY": "http://tls:3129"}


def way(environ: dict[str, str], url: str) -> str | None:
    """The proxy on the way to ``url``, as URL; None for the direct way."""
    proxy = Proxies.of(environ).through(place_of(url))
    return proxy and proxy.place.text()


def test_without_a_proxy_there_is_nothing_to_ask() -> None:
    """NO_PROXY alone names none."""
    assert Egress.of({"NO_PROXY": "data.example"}, "ab").proxies is None


NAMES = [variant for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy") for variant in (name, name.upper())]


@given(st.dictionaries(st.sampled_from([*NAMES, "REQUEST_METHOD"]), st.sampled_from(["", "a:1", "http://b:2"])), st.booleans())
def test_the_choice_is_urllibs(environ: dict[str, str], tls: bool) -> None:
    """Which variable counts is as in the standard library, for any mix of spellings."""
    scheme = "https" if tls else "http"
    environ = {name: value for name, value in environ.items() if name.lower() != "no_proxy"}
    with mock.patch.dict(os.environ, environ, clear=True):
        theirs = urllib.request.getproxies_environment()
    # urllib forgets that an empty variable switches ALL_PROXY off as well; curl and we do not.
    spelt = [name for name in (f"{scheme}_proxy", f"{scheme.upper()}_PROXY") if name in environ]
    expected = theirs.get(scheme, "" if spelt else theirs.get("all", ""))
    if scheme == "http" and spelt == ["HTTP_PROXY"] and "REQUEST_METHOD" in environ:
        expected = theirs.get("all", "")
    ours = way(environ, f"{scheme}://data.example/")
    assert (ours or "") == (f"http://{expected}" if expected and "://" not in expected else expected)


@pytest.mark.parametrize(
    ("bypass", "direct", "proxied"),
    [
        ("*", ["http://any.example/"], []),
        ("data.example", ["http://data.example/", "http://a.data.example:81/", "http://DATA.example./"], ["http://mydata.example/"]),
        (".data.example", ["http://data.example/", "http://a.data.example/"], ["http://adata.example/"]),
        ("*.data.example", ["http://a.data.example/"], ["http://data.example/"]),
        ("data.example:81", ["http://data.example:81/", "http://a.data.example:81/"], ["http://data.example/"]),
        ("10.0.0.0/8 , x.example", ["http://10.1.2.3/", "http://x.example/"], ["http://11.0.0.1/", "http://ten.example/"]),
        ("10.0.0.5", ["http://10.0.0.5:8000/", "http://[::ffff:10.0.0.5]/"], ["http://10.0.0.50/", "http://5.10.0.0.5.example/"]),
        ("10.0.0.5:80", ["http://10.0.0.5/"], ["http://10.0.0.5:81/"]),
        ("fd00::/8,[fe::1]:81", ["http://[fd12::1]/", "http://[fe::1]:81/"], ["http://[fe::1]/"]),
        ("::1x, /, :, 10.0.0.0/99, data.example", ["http://data.example/"], ["http://other.example/"]),
        ("", [], ["http://data.example/"]),
    ],
)
def test_no_proxy(bypass: str, direct: list[str], proxied: list[str]) -> None:
    """Hosts, what is below them, ports and networks; what cannot be read says nothing."""
    environ = {**BOTH, "NO_PROXY": bypass}
    assert [url for url in direct if way(environ, url)] == []
    assert [url for url in proxied if not way(environ, url)] == []


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "a.localhost", "[::1]", "[::ffff:127.0.0.1]"])
def test_loopback_goes_through_no_proxy(host: str) -> None:
    """Whatever NO_PROXY says: another machine's loopback is not this one."""
    assert way(BOTH, f"http://{host}:8000/") is None


def test_a_password_becomes_a_header_and_is_never_shown() -> None:
    """user:password@ is percent-decoded, and neither text nor repr holds it."""
    proxy = Proxies.of({"https_proxy": "http://us%40er:hunter%3A2@p.example:3128/"}).through(place_of("https://data.example/"))
    assert proxy is not None
    assert proxy.authorization == "Basic dXNAZXI6aHVudGVyOjI="
    assert proxy.text() == "http://p.example:3128 (https_proxy)"
    assert "hunter" not in repr(proxy)
    assert "dXNA" not in repr(proxy)


NO_PROXIES = ["socks5://me:hunter2@p:1080", "http://", "http://me:hunter2@", "me:hunter2://x@p", "p:http", "http://127.1:80", "ftp://p"]


@pytest.mark.parametrize("value", NO_PROXIES)
def test_what_is_no_proxy_ends_the_start(value: str) -> None:
    """One line names the variable, never the value: it may hold a password."""
    with pytest.raises(ConfigError, match="ALL_PROXY") as bad:
        Proxies.of({"ALL_PROXY": value})
    assert "hunter2" not in f"{bad.value}{bad.value.next_step}"


def test_a_socks_proxy_nobody_would_use_is_no_fault() -> None:
    """ALL_PROXY is not looked at where both schemes have their own."""
    assert way({**BOTH, "ALL_PROXY": "socks5://p"}, "http://data.example/") == "http://web:3128"
