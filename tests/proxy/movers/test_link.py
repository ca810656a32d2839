"""A real mover process, an origin and a file: what is landed, what is relayed, and what becomes of everything when the mover dies."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import xxhash

from forebay_proxy.movers.frames import Landed, Outcome
from forebay_proxy.movers.link import MoverLink, MoverLost, OriginLink

SIZE = 3 * 2**20 + 7
BODY = bytes(range(251)) * (SIZE // 251 + 1)
BODY = BODY[:SIZE]
HEAD = b"HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\n\r\n" % SIZE

WRITERS: list[asyncio.StreamWriter] = []  # of tunnels
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def mover() -> AsyncIterator[MoverLink]:
    link = await MoverLink.start()
    task = asyncio.create_task(link.ended())
    WRITERS.clear()
    try:
        yield link
    finally:
        for writer in WRITERS:
            writer.close()
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def origin(answer: Answer) -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                await answer(reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def whole(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD + BODY)


class Client:
    """One connection in a mover, with the tunnel's end."""

    def __init__(self, link: OriginLink, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.link, self.reader, self.writer = link, reader, writer
        WRITERS.append(writer)

    async def head(self) -> bytes:
        self.writer.write(b"GET / HTTP/1.1\r\n\r\n")
        return await self.reader.readuntil(b"\r\n\r\n")

    async def land(self, file: int, *, count: int = SIZE, idle_s: float = 5.0, marks: list[int] | None = None) -> Landed:
        return await self.link.land(file, 11, count, (marks if marks is not None else []).append, keep=True, idle_s=idle_s)


async def dialled(mover: MoverLink, port: int) -> Client:
    there = socket.create_connection(("127.0.0.1", port))
    ours, theirs = socket.socketpair()
    with there, theirs:
        try:
            link = mover.hand(there, theirs, "127.0.0.1", tls=False, name="", authorities=("", ""))
        except MoverLost:
            ours.close()
            raise
    return Client(link, *await asyncio.open_connection(sock=ours))


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "shard", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


async def test_body_is_landed_and_its_connection_kept(file: int) -> None:
    """Head through the tunnel, body into the file with its sum and rising marks; then a second request on the same connection."""
    async with mover() as one, origin(whole) as port:
        client = await dialled(one, port)
        for _ in range(2):
            marks: list[int] = []
            assert await client.head() == HEAD
            landed = await client.land(file, marks=marks)
            assert landed == Landed(client.link.number, Outcome.WHOLE, SIZE, xxhash.xxh3_64_intdigest(BODY), 0, True)
            assert os.pread(file, SIZE + 1, 11) == BODY
            assert marks == sorted(set(marks))
            assert marks[-1] == SIZE
            ours, theirs = socket.socketpair()
            client.link.again(theirs)
            theirs.close()
            await client.link.opened()
            client = Client(client.link, *await asyncio.open_connection(sock=ours))


async def test_body_is_relayed_where_it_is_not_landed() -> None:
    async with mover() as one, origin(whole) as port:
        client = await dialled(one, port)
        await client.head()
        client.link.relay()
        assert await client.reader.readexactly(SIZE) == BODY


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % SIZE,
        b"HTTP/1.1 200 OK\nContent-Length: %d\r\n\r\n" % SIZE,
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n" % SIZE,
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 100_000 + b"\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
async def test_answer_that_is_not_beyond_doubt_is_relayed_unasked(head: bytes, file: int) -> None:
    """Every byte of it comes through the tunnel, and a landing is refused."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head + BODY)

    async with mover() as one, origin(answer) as port:
        client = await dialled(one, port)
        client.writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await client.reader.readexactly(len(head) + SIZE) == head + BODY
        assert (await client.land(file)).outcome == Outcome.NOT_HELD


async def test_interim_answers_pass_before_the_head(file: int) -> None:
    """100 Continue and 103 Early Hints; the body behind the real head is held."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + HEAD + BODY)

    async with mover() as one, origin(answer) as port:
        client = await dialled(one, port)
        assert (await client.head()).startswith(b"HTTP/1.1 100")
        assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 103")
        assert await client.reader.readuntil(b"\r\n\r\n") == HEAD
        assert (await client.land(file)).outcome == Outcome.WHOLE


async def test_body_that_ends_early_is_short(file: int) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + BODY[:-1])
        writer.close()

    async with mover() as one, origin(answer) as port:
        client = await dialled(one, port)
        await client.head()
        landed = await client.land(file)
        assert (landed.outcome, landed.moved, landed.kept) == (Outcome.SHORT, SIZE - 1, False)
        assert landed.checksum == xxhash.xxh3_64_intdigest(BODY[:-1])


async def test_trickle_is_seen_though_the_kernel_wakes_for_more(file: int) -> None:
    """A few bytes at a time, far fewer than the kernel wakes for, reach the loop before the origin goes on."""
    marks: list[int] = []

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + BODY[:1000])
        for sent in (1000, 2000):
            while not marks or marks[-1] < sent:
                await asyncio.sleep(0.005)
            writer.write(BODY[sent : sent + 1000])
        writer.write(BODY[3000:])

    async with mover() as one, origin(answer) as port:
        client = await dialled(one, port)
        await client.head()
        assert (await client.land(file, marks=marks)).outcome == Outcome.WHOLE


async def test_silence_ends_a_landing_and_nothing_is_written_after_it(file: int) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + BODY[:1000])
        await writer.drain()

    async with mover() as one, origin(answer) as port:
        client = await dialled(one, port)
        await client.head()
        with pytest.raises(TimeoutError):
            await client.land(file, idle_s=0.2)
        assert one.landings == 0
        assert client.link.number not in one.connections


async def test_landing_of_a_killed_mover_is_lost_and_what_it_marked_is_there(file: int) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD + BODY[: 2**20])
        await writer.drain()

    marks: list[int] = []
    async with mover() as one, origin(answer) as port:
        client = await dialled(one, port)
        await client.head()
        landing = asyncio.create_task(client.land(file, marks=marks))
        while not marks or marks[-1] < 2**20:
            await asyncio.sleep(0.005)
        os.kill(one.pid, signal.SIGKILL)
        with pytest.raises(MoverLost):
            await landing
        assert os.pread(file, 2**20, 11) == BODY[: 2**20]
        with pytest.raises(MoverLost):
            await dialled(one, port)


async def test_mover_ends_when_its_sidecar_is_gone_and_heeds_no_other_signal() -> None:
    """SIGTERM to all of a group is the sidecar's to answer; a control socket that closed is the end."""
    async with mover() as one:
        await asyncio.wait_for(one._ponged.wait(), 10)
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(one.pid, number)
        ended = asyncio.create_task(one._process.wait())
        await asyncio.wait([ended], timeout=0.1)
        assert not ended.done()
        one._control.shutdown(socket.SHUT_RDWR)
        assert await asyncio.wait_for(ended, 5) in (0, -signal.SIGKILL)


async def test_mover_cannot_be_looked_into_and_no_secret_is_in_its_arguments() -> None:
    """Not dumpable: what the kernel shows of it belongs to root."""
    async with mover() as one, origin(whole) as port:
        await (await dialled(one, port)).head()
        assert os.stat(f"/proc/{one.pid}/mem").st_uid == 0
        assert all(word.isdigit() for word in Path(f"/proc/{one.pid}/cmdline").read_bytes().split(b"\0")[4:-1])
