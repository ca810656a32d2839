"""guard.py: where Forebay may go."""

from __future__ import annotations

from ipaddress import IPv4Address

import pytest

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.origins.net.address_class import AddressClass
from forebay_proxy.origins.net.allow_list import place_of
from forebay_proxy.origins.net.guard import Guard, Hop, Refused


def trip(url: str, **how: object) -> Hop:
    return Hop(place_of(url), **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/", "http://[fd00:ec2::254]/", "http://0.0.0.0:80/", "http://224.0.0.1/", "http://[fe80::1]/",
        "http://[::ffff:169.254.169.254]/",
    ],
)  # fmt: skip
def test_some_places_are_never_allowed(url: str) -> None:
    """Metadata, link-local, multicast and unspecified addresses stay closed even when named."""
    with pytest.raises(Refused, match="never goes there") as refused:
        Guard(allow_origin=[url]).check(trip(url))
    assert refused.value.next_step == ""


@pytest.mark.parametrize("host", ["metadata.google.internal", "METADATA.google.internal.", "metadata"])
def test_metadata_names_are_refused_before_any_look_up(host: str) -> None:
    """The name alone is enough."""
    with pytest.raises(Refused, match="metadata"):
        Guard().check(trip(f"http://{host}/"))


def test_loopback_needs_exactly_its_name() -> None:
    """--allow-origin opens one scheme, host and port; the refusal prints it."""
    guard = Guard(allow_origin=["http://127.0.0.1:9000", "127.0.0.0/8", "http://*.localhost:9001"])
    guard.check(trip("http://127.0.0.1:9000/x"))
    for url in ("http://127.0.0.1:9001/", "https://127.0.0.1:9000/", "http://127.0.0.2:9000/"):
        with pytest.raises(Refused, match="loopback") as refused:
            guard.check(trip(url))
        assert refused.value.next_step == f"--allow-origin {place_of(url).text()} allows it"
    with pytest.raises(Refused, match="loopback"):
        guard.check_address(trip("http://a.localhost:9001/"), "127.0.0.1")


def test_strict_with_a_network_lets_the_look_up_decide() -> None:
    """A network in the list admits names whose addresses lie in it, and only those."""
    guard = Guard(allow_origin=["10.0.0.0/8"], strict_origins=True)
    nas = trip("http://nas.lan/")
    guard.check(nas)
    assert guard.permitted(nas, ["10.0.0.5", "8.8.8.8"]) == ["10.0.0.5"]
    with pytest.raises(Refused, match="strict"):
        guard.permitted(nas, ["8.8.8.8"])


def test_a_malformed_operator_endpoint_ends_the_start() -> None:
    """Said once, at start, without repeating what may hold a key."""
    with pytest.raises(ConfigError, match="not an http") as bad:
        Guard(operator_endpoints=["key:secret@minio"])
    assert "secret" not in str(bad.value)


@pytest.mark.parametrize("address", ["10.0.0.1", "127.0.0.1", "fd12::1"])
def test_a_public_host_never_redirects_inward(address: str) -> None:
    """Not even to what a flag allows for a first hop."""
    guard = Guard(allow_origin=["http://in.example:80"])
    hop = trip("http://in.example/", came_from=AddressClass.PUBLIC)
    with pytest.raises(Refused, match="redirect"):
        guard.check_address(hop, address)
    guard.check_address(trip("http://in.example/", came_from=AddressClass.PRIVATE), "10.0.0.1")


def test_a_bucket_entry_vouches_for_the_ordinary_place_only() -> None:
    """s3://b does not open an endpoint that the client named."""
    guard = Guard(allow_origin=["s3://b"], strict_origins=True)
    guard.check_bucket("s3", "b", named=True, endpoint=None)
    with pytest.raises(Refused):
        guard.check_bucket("s3", "c", named=True, endpoint=None)
    with pytest.raises(Refused, match=r"http://10\.0\.0\.9"):
        guard.check_bucket("s3", "b", named=False, endpoint=place_of("http://10.0.0.9/"))


OURS = "10.0.0.5"


@pytest.mark.parametrize(
    "address", [OURS, f"::ffff:{OURS}", "64:ff9b::a00:5", "64:ff9b:1::a00:5", "2002:a00:5::1", "127.0.0.1", "::1", "::ffff:127.0.0.1"]
)
def test_its_own_address_is_known_in_every_spelling(address: str) -> None:
    """Whatever may be unwrapped on the way counts, and so does loopback with our port."""
    guard = Guard(allow_origin=["http://me.example:7070"], own_addresses=[(OURS, 7070)])
    with pytest.raises(Refused, match="this Forebay itself"):
        guard.check_address(trip("http://me.example:7070/"), address)
    guard.check_address(trip("http://me.example:7071/"), OURS)


@pytest.mark.parametrize("everywhere", ["0.0.0.0", "::"])
def test_listening_everywhere_covers_every_spelling(everywhere: str) -> None:
    """An address of this machine inside another one is still of this machine."""
    guard = Guard(own_addresses=[(everywhere, 7070)], is_local=lambda ip: ip == IPv4Address(OURS))
    for host in (OURS, f"[::ffff:{OURS}]", "[2002:a00:5::1]"):
        with pytest.raises(Refused, match="itself"):
            guard.check(trip(f"http://{host}:7070/"))
    guard.check(trip("http://10.0.0.6:7070/"))


def test_a_proxy_is_dialled_where_the_operator_put_it() -> None:
    """Private and loopback proxies are the usual ones; the place behind is judged as ever, and never dialled itself."""
    guard = Guard(own_addresses=[("127.0.0.1", 7070)])
    through = trip("http://data.example/", proxy=place_of("http://127.0.0.1:3128"))
    guard.check_dial(through, "127.0.0.1")
    guard.check_dial(through, "10.0.0.1")
    with pytest.raises(Refused, match="loopback"):
        guard.check_address(through, "127.0.0.1")
    with pytest.raises(Refused, match=r"proxy http://127\.0\.0\.1:7070 is this Forebay itself"):
        guard.check_dial(trip("http://data.example/", proxy=place_of("http://127.0.0.1:7070")), "127.0.0.1")


def test_a_name_unknown_here_is_the_proxys_business_unless_strict() -> None:
    """Strict origins want it by name; a network in the list can vouch for nothing that is not looked up here."""
    unknown = trip("http://data.example/", proxy=place_of("http://10.0.0.1:3128"))
    Guard().check_unknown(unknown)
    Guard(allow_origin=["http://data.example"], strict_origins=True).check_unknown(unknown)
    with pytest.raises(Refused, match="strict"):
        Guard(allow_origin=["10.0.0.0/8"], strict_origins=True).check_unknown(unknown)


@pytest.mark.parametrize(
    ("origin", "strict", "flag"),
    [
        ("http://127.0.0.1:9000/", False, "--allow-origin http://127.0.0.1:9000 allows it"),
        ("http://[::1]:9000/", False, "--allow-origin http://[::1]:9000 allows it"),
        ("http://10.0.0.5/", True, "--allow-origin http://10.0.0.5 allows it"),
        ("https://data.example/", True, "--allow-origin https://data.example allows it"),
        ("http://169.254.169.254/", True, ""),
    ],
)
def test_a_refusal_prints_the_flag_that_allows_it(origin: str, strict: bool, flag: str) -> None:
    """And that flag does; nothing is printed where none would."""
    with pytest.raises(Refused) as refused:
        Guard(strict_origins=strict).check(trip(origin))
    assert refused.value.next_step == flag
    if flag:
        Guard(allow_origin=[flag.split()[1]], strict_origins=strict).check(trip(origin))
