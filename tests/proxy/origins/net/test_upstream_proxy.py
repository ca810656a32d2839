"""Origins behind an upstream proxy: a real tinyproxy, real TLS, in a network that has only loopback.

The origins live at 10.7.7.7 and 8.8.8.8, which are on loopback here: loopback itself never goes through a proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from support.netns import lonely_network
from support.scripted_answers import ramp
from support.scripted_origin import ScriptedOrigin
from support.tinyproxy import TinyProxy, tinyproxy
from support.tls import Authority

from forebay_proxy.core.errors import OriginError, OriginRefused, OriginUnavailable, ShardError
from forebay_proxy.core.events import Event, Events
from forebay_proxy.core.facts.origins import OriginFailed
from forebay_proxy.core.shard import ByteRange, Pin, Shard
from forebay_proxy.origins.http import HttpOrigin
from forebay_proxy.origins.http_client import OriginClient
from forebay_proxy.origins.landing import LEAST_BYTES
from forebay_proxy.origins.net.dial import Answers, GuardedResolver
from forebay_proxy.origins.net.egress import Egress
from forebay_proxy.origins.net.guard import Guard
from forebay_proxy.wire.urls.shard_url import parse_origin_url

NEAR, FAR = "10.7.7.7", "8.8.8.8"
HOSTS = {"near.example": NEAR, "far.example": FAR}
CANARY = "hunter2"


class Client:
    """An http origin whose environment is ``environ``, and what it reported."""

    def __init__(
        self,
        environ: dict[str, str],
        guard: Guard | None = None,
        look_up: Callable[[str, int], Answers] | None = None,
        look_aside_s: float = 60.0,
    ) -> None:
        self.events: list[Event] = []
        events = Events()
        events.listen(self.events.append)
        guard = guard or Guard()
        resolver = GuardedResolver(guard, look_up=look_up, look_aside_s=look_aside_s)
        origin_client = OriginClient(
            guard=guard, events=events, connect_timeout_s=3.0, idle_timeout_s=5.0, resolver=resolver, egress=Egress.of(environ, "ab")
        )
        self.origin = HttpOrigin(guard=guard, events=events, origin_client=origin_client)

    async def get(self, url: str, first: int = 0, last: int = 99) -> bytes:
        async with self.origin.read(Shard.of(parse_origin_url(url)), ByteRange(first, last), Pin()) as body:
            return b"".join([chunk async for chunk in body.chunks])

    async def fails(self, kind: type[ShardError], url: str) -> ShardError:
        with pytest.raises(kind) as raised:
            await self.get(url)
        error = raised.value
        assert CANARY not in f"{error} {error!r} {error.next_step} {self.events}"
        return error


@asynccontextmanager
async def client(environ: dict[str, str], **how: object) -> AsyncIterator[Client]:
    made = Client(environ, **how)  # type: ignore[arg-type]
    try:
        yield made
    finally:
        await made.origin.aclose()


@contextmanager
def network(*more: str) -> Iterator[None]:
    with lonely_network(NEAR, FAR, *more, hosts=HOSTS):
        yield


@asynccontextmanager
async def served(host: str = NEAR, **how: object) -> AsyncIterator[ScriptedOrigin]:
    async with ScriptedOrigin(host=host, **how) as server:  # type: ignore[arg-type]
        server.put("/a.tar", ramp(10_000))
        yield server


def nowhere(host: str, port: int) -> Answers:
    raise socket.gaierror(socket.EAI_NONAME, "no such name")


async def test_http_goes_through_the_proxy(tmp_path: Path) -> None:
    """With its range, and with the answer's headers as the origin sent them."""
    with network(), tinyproxy(tmp_path) as proxy:
        async with served() as origin, client({"http_proxy": proxy.url}) as us:
            assert await us.get(origin.url("/a.tar"), 10, 19) == ramp(10, 10)
            assert origin.requests[0].range == "bytes=10-19"
        assert proxy.asked() == [f"GET {origin.url('/a.tar')}"]


async def test_https_is_a_tunnel_that_is_kept(tmp_path: Path) -> None:
    """Three requests, one CONNECT, one connection to the origin: TLS is not begun anew for each segment. Small bodies, and a landing."""
    authority = Authority(tmp_path)
    with network(), tinyproxy(tmp_path) as proxy:
        async with served(tls=authority.server(NEAR)) as origin, client(secure(proxy, authority)) as us:
            origin.put("/a.tar", ramp(4 * LEAST_BYTES))
            for first, count in ((0, 100), (100, 2 * LEAST_BYTES), (200, 100)):
                assert await us.get(origin.url("/a.tar"), first, first + count - 1) == ramp(count, first)
            assert {request.connection for request in origin.requests} == {1}
        assert proxy.asked() == [f"CONNECT {NEAR}:{origin.port}"]


def secure(proxy: TinyProxy, authority: Authority, userinfo: str = "") -> dict[str, str]:
    url = proxy.url.replace("//", f"//{userinfo}@") if userinfo else proxy.url
    return {"HTTPS_PROXY": url, "HTTP_PROXY": url, "SSL_CERT_FILE": str(authority.bundle)}


@pytest.mark.parametrize("tls", [False, True])
async def test_the_proxy_gets_its_password_and_nobody_else(tmp_path: Path, tls: bool) -> None:
    """In the request for http, in the CONNECT for https; the origin never sees it, nor does anything we print."""
    authority = Authority(tmp_path)
    with network(), tinyproxy(tmp_path, user=f"me:{CANARY}") as proxy:
        async with (
            served(tls=authority.server(NEAR) if tls else None) as origin,
            client(secure(proxy, authority, f"me:{CANARY}")) as us,
            client(secure(proxy, authority, f"me:{CANARY}x")) as wrong,
            client(secure(proxy, authority)) as nameless,
        ):
            assert await us.get(origin.url("/a.tar")) == ramp(100)
            assert "proxy-authorization" not in origin.requests[0].headers
            # A wrong password for http is answered with 401, which nobody can tell from the origin's own.
            for other in (nameless, wrong) if tls else (nameless,):
                error = await other.fails(OriginError, origin.url("/a.tar"))
                assert f"upstream proxy http://127.0.0.1:{proxy.port} (HTTP" in error.cause
                assert "wants other credentials" in error.cause
                assert not error.retryable
            assert len(origin.requests) == 1


async def test_no_proxy_and_loopback_go_straight(tmp_path: Path) -> None:
    """The proxy hears of neither."""
    with network(), tinyproxy(tmp_path) as proxy:
        async with served() as near, served(host="127.0.0.1") as own:
            environ = {"http_proxy": proxy.url, "no_proxy": "10.0.0.0/8"}
            async with client(environ, guard=Guard(allow_origin=[own.base, f"http://myself.example:{own.port}"]), look_up=myself) as us:
                for url in (near.url("/a.tar"), own.url("/a.tar"), f"http://myself.example:{own.port}/a.tar"):
                    assert await us.get(url) == ramp(100)
        assert proxy.asked() == []


def myself(host: str, port: int) -> Answers:
    return [(socket.AF_INET, host if host[0].isdigit() else "127.0.0.1")]


async def test_a_name_only_the_proxy_knows(tmp_path: Path) -> None:
    """A network without a name server of its own still has a way out, and strict origins still hold there."""
    with network(), tinyproxy(tmp_path) as proxy:
        async with served(host=FAR) as origin:
            url = f"http://far.example:{origin.port}/a.tar"
            environ = {"http_proxy": proxy.url}
            async with client(environ, look_up=nowhere) as us:
                assert await us.get(url) == ramp(100)
            strict = Guard(allow_origin=["8.0.0.0/8", "http://named.example"], strict_origins=True)
            async with client(environ, guard=strict, look_up=nowhere) as us:
                error = await us.fails(OriginRefused, url)
                assert error.next_step == f"--allow-origin http://far.example:{origin.port} allows it"
        assert len(proxy.asked()) == 1


async def test_a_silent_name_server_costs_two_tenths_of_a_second_once(tmp_path: Path) -> None:
    """Where names mean nothing, the name server often says nothing either: the proxy is asked all the same."""
    answer = threading.Event()
    asked: list[str] = []

    def silent(host: str, port: int) -> Answers:
        asked.append(host)
        answer.wait(240)
        raise socket.gaierror(socket.EAI_AGAIN, "no answer")

    with network(), tinyproxy(tmp_path) as proxy:
        async with served(host=FAR) as origin, client({"http_proxy": proxy.url}, look_up=silent, look_aside_s=0.2) as us:
            try:
                for _ in range(3):
                    assert await asyncio.wait_for(us.get(f"http://far.example:{origin.port}/a.tar"), 60) == ramp(100)
                assert asked == ["far.example"]
            finally:
                answer.set()


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data/", "http://[fd00:ec2::254]/latest/",
        "http://metadata.google.internal/computeMetadata/v1/", "https://metadata.google.internal/computeMetadata/v1/",
        "http://rebind.example/", "http://mixed.example/", "http://[::ffff:169.254.169.254]/",
    ],
)  # fmt: skip
async def test_the_proxy_is_never_asked_for_what_is_refused(tmp_path: Path, url: str) -> None:
    """Literals, names, and names with one bad answer among good ones, from which the proxy would choose."""

    def look_up(host: str, port: int) -> Answers:
        addresses = {"rebind.example": ["169.254.169.254"], "mixed.example": [NEAR, "169.254.169.254"]}.get(host, [host])
        return [(socket.AF_INET, address) for address in addresses]

    with network(), tinyproxy(tmp_path) as proxy:
        async with client({"http_proxy": proxy.url, "https_proxy": proxy.url}, look_up=look_up) as us:
            await us.fails(OriginRefused, url)
        assert proxy.asked() == []


async def test_a_name_only_the_proxy_knows_does_not_redirect_inward(tmp_path: Path) -> None:
    """Unknown counts as public: what answered may well be."""
    with network(), tinyproxy(tmp_path) as proxy:
        async with served(host=FAR) as far, served() as near, client({"http_proxy": proxy.url}, look_up=nowhere) as us:
            far.redirect("/r", near.url("/a.tar"))
            error = await us.fails(OriginRefused, f"http://far.example:{far.port}/r")
            assert "redirect" in error.cause
            assert near.requests == []


async def test_a_refused_tunnel_is_the_proxys_word(tmp_path: Path) -> None:
    """A 403 to CONNECT is not the origin's, and is not repeated."""
    with network(), tinyproxy(tmp_path, tunnels_to=443) as proxy:
        async with client({"https_proxy": proxy.url}) as us:
            error = await us.fails(OriginError, f"https://{NEAR}:8443/a.tar")
        assert (error.retryable, "(403)" in error.cause, proxy.url in error.cause) == (False, True, True)


async def test_a_proxy_that_is_away_is_named(tmp_path: Path) -> None:
    """Its address and its variable, without the password; asked again later."""
    with network(), socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        environ = {"http_proxy": f"http://me:{CANARY}@127.0.0.1:{holder.getsockname()[1]}"}
        async with client(environ) as us:
            error = await us.fails(OriginUnavailable, f"http://{NEAR}/a.tar")
            assert [event.reason for event in us.events if isinstance(event, OriginFailed)] == ["connect"]
    assert f"upstream proxy http://127.0.0.1:{holder_port(environ)} (http_proxy)" in error.cause
    assert error.retryable


def holder_port(environ: dict[str, str]) -> str:
    return environ["http_proxy"].rpartition(":")[2]


async def test_the_proxy_is_never_forebay_itself(tmp_path: Path) -> None:
    """A variable that names our own address is a loop of one step."""
    with network():
        async with served(host="127.0.0.1") as ourselves:
            guard = Guard(own_addresses=[("127.0.0.1", ourselves.port)])
            for proxy in (ourselves.base, f"http://localhost:{ourselves.port}"):
                async with client({"http_proxy": proxy, "https_proxy": proxy}, guard=guard) as us:
                    for scheme in ("http", "https"):
                        error = await us.fails(OriginRefused, f"{scheme}://{NEAR}/a.tar")
                        assert "this Forebay itself" in error.cause
            assert ourselves.requests == []


async def test_an_origins_certificate_is_checked_through_the_tunnel(tmp_path: Path) -> None:
    """A proxy that answers for the origin is found out, and told from an untrusted proxy."""
    other = tmp_path / "other"
    other.mkdir()
    with network(), tinyproxy(tmp_path) as proxy:
        async with served(tls=Authority(other).server(NEAR)) as origin, client(secure(proxy, Authority(tmp_path))) as us:
            error = await us.fails(OriginUnavailable, origin.url("/a.tar"))
            assert "origin's TLS certificate is not trusted" in error.cause
            assert error.hopeless


@pytest.mark.parametrize("trusted", [True, False])
async def test_a_proxy_may_be_reached_by_tls(tmp_path: Path, trusted: bool) -> None:
    """https to the proxy, and https through it: its certificate is checked as well."""
    authority = Authority(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    bundle = authority.bundle if trusted else Authority(other).bundle
    with network():
        async with served(tls=authority.server(NEAR)) as origin, tls_front(authority, tmp_path) as (port, proxy):
            environ = {"https_proxy": f"https://localhost:{port}", "SSL_CERT_FILE": str(bundle)}
            async with client(environ) as us:
                if trusted:
                    assert await us.get(origin.url("/a.tar")) == ramp(100)
                    assert proxy.asked() == [f"CONNECT {NEAR}:{origin.port}"]
                else:
                    error = await us.fails(OriginUnavailable, origin.url("/a.tar"))
                    assert f"upstream proxy https://localhost:{port} (https_proxy): its TLS certificate" in error.cause
                    assert proxy.asked() == []


@asynccontextmanager
async def tls_front(authority: Authority, directory: Path) -> AsyncIterator[tuple[int, TinyProxy]]:
    """TLS in front of a tinyproxy, which speaks none."""
    tasks: set[asyncio.Task[None]] = set()

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    with tinyproxy(directory) as proxy:

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            behind = await asyncio.open_connection("127.0.0.1", proxy.port)
            await asyncio.gather(relay(reader, behind[1]), relay(behind[0], writer))

        async with await asyncio.start_server(accept, "127.0.0.1", 0, ssl=authority.server("localhost")) as front:
            yield front.sockets[0].getsockname()[1], proxy
        await asyncio.wait(tasks, timeout=60) if tasks else None
