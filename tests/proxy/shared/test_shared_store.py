"""Objects of the shared tier in real S3 stores: what is written, what is refused, and what is left by who stops."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from support.house import data_of, until
from support.s3_servers import S3Server
from xxhash import xxh3_64_intdigest

from forebay_proxy.config.settings import Settings
from forebay_proxy.config.shared_place import SharedPlace
from forebay_proxy.core.errors import ShardChanged
from forebay_proxy.core.events import Events
from forebay_proxy.core.shard import ByteRange, Pin, Shard
from forebay_proxy.origins.registry import Egress, Origins
from forebay_proxy.shared.shared_store import SharedStore, StoreRefused
from forebay_proxy.wire.urls.shard_url import parse_origin_url

SEGMENT = 1 << 16
LENGTH = 2 * SEGMENT + 5


@asynccontextmanager
async def opened(url: str, environ: dict[str, str], patch: pytest.MonkeyPatch) -> AsyncIterator[tuple[SharedStore, Origins]]:
    for name, value in environ.items():
        if name != "AWS_ENDPOINT_URL":
            patch.setenv(name, value)
    place = SharedPlace(f"s3://tier/p?endpoint={url}")
    origins = Origins.of(Settings(shared=place), os.environ, Events(), Egress.of(os.environ, "i"))
    assert origins.shared is not None
    store = SharedStore(place, origins.shared)
    try:
        yield store, origins
    finally:
        store.close()
        await origins.aclose()


@asynccontextmanager
async def bucket(server: S3Server, patch: pytest.MonkeyPatch) -> AsyncIterator[SharedStore]:
    with server.client() as client:
        client.create_bucket(Bucket="tier")
    async with opened(server.url, server.environ, patch) as (store, _):
        yield store


@pytest.fixture(params=["moto", "rados_gateway"])
def server(request: pytest.FixtureRequest) -> S3Server:
    found: S3Server = request.getfixturevalue(request.param)
    return found


@contextmanager
def file_of(path: Path, data: bytes) -> Iterator[int]:
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sums_of(data: bytes) -> list[int]:
    return [xxh3_64_intdigest(data[at : at + SEGMENT]) for at in range(0, len(data), SEGMENT)]


async def test_objects(server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Written, read, dated by the store, gone; one of two that take a name has it, be it free or another's old one."""
    data = data_of(LENGTH)
    async with bucket(server, monkeypatch) as store:
        assert (await store.get("x.json"), await store.age("x.json")) == (None, None)
        await store.put("x.json", b"one")
        assert await store.get("x.json") == b"one"
        taken = await asyncio.gather(*(store.take("x.lease", str(number).encode()) for number in range(4)))
        assert sum(taken) == 1
        age = await store.age("x.lease")
        assert age is not None
        assert -1 <= age[0] < 30
        if not server.access_key.startswith("moto"):  # moto knows no If-Match
            taken = await asyncio.gather(*(store.take("x.lease", f"again {number}".encode(), age[1]) for number in range(4)))
            assert sum(taken) == 1
            await store.delete("x.lease")
            assert not await store.take("x.lease", b"late", age[1])
        with file_of(tmp_path / "shard", data) as descriptor:
            etag = await store.put_shard("x.bytes", descriptor, LENGTH, SEGMENT, sums_of(data))
        async with store.read("x.bytes", ByteRange(SEGMENT, LENGTH - 1), etag) as body:
            assert b"".join([bytes(piece) async for piece in body.chunks]) == data[SEGMENT:]
        with pytest.raises(ShardChanged):
            async with store.read("x.bytes", ByteRange(0, 9), '"another"'):
                pass
        for name in ("x.json", "x.bytes", "x.lease", "never.there"):
            await store.delete(name)
        assert await store.age("x.bytes") is None


async def test_what_differs_from_its_checksums_is_not_written(moto: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A byte of our own disk that has turned, or a file that is too short; the descriptor is closed."""
    data = data_of(LENGTH)
    async with bucket(moto, monkeypatch) as store:
        for spoilt in (data[:-1] + b"\x00", data[:-1], data[:SEGMENT]):
            before = len(os.listdir("/proc/self/fd"))
            with file_of(tmp_path / "shard", spoilt) as descriptor, pytest.raises(StoreRefused) as caught:
                await store.put_shard("y.bytes", descriptor, LENGTH, SEGMENT, sums_of(data))
            assert caught.value.reason == "file"
            assert await store.age("y.bytes") is None
            await until(lambda before=before: len(os.listdir("/proc/self/fd")) <= before + 2)  # the pool's own connections


class Stub:
    """An HTTP server that gives each request one answer, a second late if ``slow``; it counts them."""

    def __init__(self, answer: bytes, slow_s: float = 0.0) -> None:
        self.answer, self.slow_s, self.asked = answer, slow_s, 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            if connection.recv(65536):
                self.asked += 1
                time.sleep(self.slow_s)
                connection.sendall(self.answer)

    def close(self) -> None:
        self._listener.close()


KEYS = {"AWS_ACCESS_KEY_ID": "visible", "AWS_SECRET_ACCESS_KEY": "invisible", "AWS_DEFAULT_REGION": "us-east-1"}


def refusal(status: str, code: str) -> bytes:
    body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
    return b"HTTP/1.1 %s\r\nContent-Type: application/xml\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (
        status.encode(),
        len(body),
        body,
    )


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (refusal("403 Forbidden", "AccessDenied"), "refused"), (refusal("404 Not Found", "NoSuchBucket"), "refused"),
        (refusal("507 Insufficient Storage", "x"), "full"), (refusal("403 Forbidden", "QuotaExceeded"), "full"),
        (refusal("503 Slow Down", "SlowDown"), "unavailable"), (refusal("500 Oops", "InternalError"), "unavailable"),
        (b"", "unavailable"), (b"nonsense\r\n\r\n", "unavailable"),
    ],
)  # fmt: skip
async def test_refusals_have_a_reason(answer: bytes, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One request each, and no key, secret or place in what is said."""
    with ExitStack() as stack:
        stub = Stub(answer)
        stack.callback(stub.close)
        async with opened(stub.url, KEYS, monkeypatch) as (store, _):
            for call in (store.put("x", b"y"), store.take("x", b"y")):
                with pytest.raises(StoreRefused) as caught:
                    await call
                assert caught.value.reason == reason
                assert not any(word in str(caught.value) for word in ("visible", "127.0.0.1", "tier"))
            assert stub.asked == 2


async def test_an_answer_without_a_date_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    with ExitStack() as stack:
        stub = Stub(b'HTTP/1.1 200 OK\r\nETag: "x"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n')
        stack.callback(stub.close)
        async with opened(stub.url, KEYS, monkeypatch) as (store, _):
            with pytest.raises(StoreRefused):
                await store.age("x")


@pytest.mark.parametrize("granted", [False, True])
async def test_whoever_stops_taking_a_name_leaves_none(moto: S3Server, monkeypatch: pytest.MonkeyPatch, granted: bool) -> None:
    """Cancelled while the store answers, or when it has: the object is deleted again."""
    async with bucket(moto, monkeypatch) as store:
        await store.age("warm")  # the SDK is loaded
        taking = asyncio.ensure_future(store.take("z.lease", b"mine"))
        await asyncio.sleep(0)
        if granted:
            with moto.client() as client:
                await until(lambda: client.list_objects_v2(Bucket="tier", Prefix="p/z")["KeyCount"])
        taking.cancel()
        await asyncio.wait([taking])
        store._small.submit(lambda: None).result()
        with moto.client() as client:
            await until(lambda: not client.list_objects_v2(Bucket="tier", Prefix="p/z")["KeyCount"])


async def test_closing_ends_a_write_that_is_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The sidecar's end waits for no shard of gigabytes; later calls are refused, and leave no descriptor."""
    with ExitStack() as stack:
        stub = Stub(b"", slow_s=3)
        stack.callback(stub.close)
        async with opened(stub.url, KEYS, monkeypatch) as (store, _):
            data = data_of(4 << 20)
            descriptor = stack.enter_context(file_of(tmp_path / "shard", data))
            writing = asyncio.ensure_future(store.put_shard("x.bytes", descriptor, len(data), SEGMENT, [1] * 64))
            await asyncio.sleep(0.05)
            store.close()
            before = len(os.listdir("/proc/self/fd"))
            with pytest.raises(StoreRefused):
                await writing
            with pytest.raises(StoreRefused):
                await store.put_shard("x.bytes", descriptor, len(data), SEGMENT, [1] * 64)
            assert len(os.listdir("/proc/self/fd")) <= before


async def test_clients_may_not_ask_its_store(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the sidecar reads with the tier's endpoint and profile is its own: the origins of clients have neither."""
    with moto.client() as client:
        client.create_bucket(Bucket="tier")
    async with opened(moto.url, moto.environ, monkeypatch) as (store, origins):
        await store.put("x", b"y")
        assert await store.get("x") == b"y"
        for url in (f"{moto.url}/tier/p/x", f"s3://tier/p/x?endpoint={moto.url}"):
            with pytest.raises(Exception, match=r"origin|endpoint|address"):
                async with origins.by_scheme[url.partition(":")[0]].read(Shard.of(parse_origin_url(url)), ByteRange(0, 0), Pin()):
                    pass
