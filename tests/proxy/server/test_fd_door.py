"""The fd door: descriptors for our own user, a lease as long as a connection, and a word where there is none."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.house import SEGMENT, World, building, data_of, reader, until

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.facts.requests import DoorAnswered, LeaseEnded, RequestDone, RequestOutcome, Served
from forebay_proxy.server import fd_door
from forebay_proxy.server.fd_door import FdServer
from forebay_proxy.server.net.access import Access
from forebay_proxy.wire.protocol.fd import FdAnswer, decode_answer, encode_end, encode_request

A = "https://o/set/a.tar"
B = "https://o/set/b.tar"
LENGTH = 3 * SEGMENT + 77
DATA = data_of(LENGTH)


@dataclass
class Passed:
    """What a client got; both are closed with the door at the latest."""

    client: socket.socket
    answer: FdAnswer
    descriptor: int | None

    def close(self) -> None:
        self.client.close()
        if self.descriptor is not None:
            os.close(self.descriptor)
        self.descriptor = None

    def bytes(self) -> bytes:
        assert self.descriptor is not None
        return os.pread(self.descriptor, LENGTH + 1, 0)


OPEN: list[Passed] = []


@asynccontextmanager
async def opened(path: Path, *, access: Access | None = None, most: int = 100, shard: str = A) -> AsyncIterator[tuple[World, FdServer]]:
    """A world with one complete shard, and its door."""
    async with building(path / "c") as world:
        world.origin.put(shard, DATA)
        await world.get(shard)
        await world.quiet()
        door = FdServer(
            cache=world.cache.fd_lender, access=access or Access(os.getuid()), events=world.events, group=world.group, clock=world.clock,
            instance="00ff", most=most,
        )  # fmt: skip
        door.open(path / "s.fd")
        try:
            yield world, door
        finally:
            await door.aclose()
            while OPEN:
                OPEN.pop().close()


async def connected(path: Path) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, str(path / "s.fd"))
    return client


async def heard(client: socket.socket) -> Passed:
    """Whatever the door says."""
    readable = asyncio.Event()
    asyncio.get_running_loop().add_reader(client, readable.set)
    await asyncio.wait_for(readable.wait(), 60)
    asyncio.get_running_loop().remove_reader(client)
    line, ancillary, _, _ = client.recvmsg(4096, socket.CMSG_SPACE(4))
    descriptors = array("i")
    for _, _, content in ancillary:
        descriptors.frombytes(content)
    assert len(descriptors) <= 1
    OPEN.append(Passed(client, decode_answer(line) if line else FdAnswer(0), descriptors[0] if descriptors else None))
    return OPEN[-1]


async def asked(path: Path, shard: str = A, who: str = "") -> Passed:
    client = await connected(path)
    client.send(encode_request(shard, who))
    return await heard(client)


async def test_a_complete_shard_is_passed(tmp_path: Path) -> None:
    """Its size, its ETag, the instance, and the origin's bytes."""
    async with opened(tmp_path) as (world, _):
        found = await asked(tmp_path)
        assert found.answer == FdAnswer(200, LENGTH, world.entry(A).version.etag(world.entry(A).key), "00ff")
        assert found.bytes() == DATA


async def test_a_version_that_is_meant_is_passed_without_the_origins_word(tmp_path: Path) -> None:
    """To a job that has compared nothing yet."""
    async with opened(tmp_path) as (world, _):
        client = await connected(tmp_path)
        etag = world.entry(A).version.etag(world.entry(A).key)
        client.send(encode_request(A, str(reader(job="another")), version=etag))
        found = await heard(client)
        assert (found.answer.status, found.bytes(), world.origin.heads()) == (200, DATA, 0)


async def test_the_connection_is_the_lease(tmp_path: Path) -> None:
    """Its reader is inside the shard until it closes."""
    async with opened(tmp_path) as (world, door):
        found = await asked(tmp_path, who=str(reader()))
        assert (world.cache.fd_lender.count, len(door.connections), world.cache.readers.is_reading(reader())) == (1, 1, True)
        found.close()
        await until(lambda: not world.cache.fd_lender.count)
        assert (len(door.connections), world.cache.readers.is_reading(reader())) == (0, False)


async def test_our_own_descriptor_is_closed_at_once(tmp_path: Path) -> None:
    """A lease costs us the connection and nothing more."""
    async with opened(tmp_path) as (world, _):
        (await asked(tmp_path)).close()
        await until(lambda: not world.cache.fd_lender.count)
        before = len(os.listdir("/proc/self/fd"))
        for each in [await asked(tmp_path) for _ in range(20)]:
            assert len(os.listdir("/proc/self/fd")) <= before + 20 * 3  # both ends of a connection, and the client's descriptor
            each.close()
        await until(lambda: not world.cache.fd_lender.count)
        assert len(os.listdir("/proc/self/fd")) == before


async def test_the_end_of_a_lease_is_told_once(tmp_path: Path) -> None:
    """For the access log: a whole shard, by whom, and for how long; however the lease ends, and whether the plan told an epoch or not."""
    async with opened(tmp_path) as (world, door):
        client = await connected(tmp_path)
        for number in range(2):
            client.send(encode_request(A, str(reader()), lease=number))
            found = await heard(client)
            assert found.descriptor is not None
            os.close(found.descriptor)
            found.descriptor = None
        assert not world.of(LeaseEnded)
        world.clock.advance(5)
        client.send(encode_end(0))
        await until(lambda: world.of(LeaseEnded))
        world.clock.advance(2)
        await door.aclose()
        first, second = (fact.done for fact in world.of(LeaseEnded))
        assert first.served == second.served == Served(A, reader(), None, LENGTH, None, 0.0, "", world.clock() - 7)
        assert (first.code, first.outcome, first.bytes_sent, first.hit_bytes) == (200, RequestOutcome.HIT, LENGTH, LENGTH)
        assert (first.seconds, second.seconds, first.first_byte_s) == (5, 7, 0)


async def test_what_is_not_complete_is_left_to_http(tmp_path: Path) -> None:
    """A line, no descriptor, and the origin is not asked."""
    async with opened(tmp_path) as (world, _):
        found = await asked(tmp_path, B)
        assert (found.answer.status, found.descriptor) == (409, None)
        found.close()
        assert not world.origin.asked(B)
        assert world.of(DoorAnswered) == [DoorAnswered("incomplete")]
        assert not world.of(RequestDone)


@pytest.mark.parametrize("line", [b"nonsense\n", b'{"shard": "ftp://x/y"}\n', b'{"shard": "s3://b/k"} more\n', b"{}\n"])
async def test_a_wrong_line_is_answered(tmp_path: Path, line: bytes) -> None:
    """And the door goes on."""
    async with opened(tmp_path):
        client = await connected(tmp_path)
        client.send(line)
        found = await heard(client)
        assert (found.answer.status, found.descriptor) == (400, None)
        found.close()
        found = await asked(tmp_path)
        assert found.bytes() == DATA


async def test_beyond_the_bound_http_does(tmp_path: Path) -> None:
    """A place is free again when a lease ends."""
    async with opened(tmp_path, most=2) as (world, _):
        held = [await asked(tmp_path) for _ in range(2)]
        found = await asked(tmp_path)
        assert (found.answer.status, found.descriptor) == (503, None)
        for each in (found, *held):
            each.close()
        await until(lambda: not world.cache.fd_lender.count)
        found = await asked(tmp_path)
        assert found.answer.status == 200


async def test_a_line_may_come_in_pieces(tmp_path: Path) -> None:
    """A slow client is answered once it has said all of it, and others meanwhile."""
    async with opened(tmp_path):
        client = await connected(tmp_path)
        line = encode_request(A, "")
        for part in (line[:5], line[5:20], line[20:]):
            client.send(part)
            other = await asked(tmp_path)
            assert other.answer.status == 200
            other.close()
        found = await heard(client)
        assert found.bytes() == DATA


async def test_a_client_that_says_nothing_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would hold a place for ever."""
    monkeypatch.setattr(fd_door, "LINE_S", 0.05)
    async with opened(tmp_path) as (_, door):
        client = await connected(tmp_path)
        client.send(b"{")
        assert (await heard(client)).answer.status == 0
        client.close()
        assert len(door.connections) == 0


async def test_a_line_without_an_end_is_cut_off(tmp_path: Path) -> None:
    """At 64 KiB."""
    async with opened(tmp_path) as (_, door):
        client = await connected(tmp_path)
        client.setblocking(True)
        client.settimeout(10)

        def talk() -> None:
            try:
                while True:
                    client.send(b"x" * 1000)
            except OSError:
                pass

        await asyncio.get_running_loop().run_in_executor(None, talk)
        await until(lambda: not len(door.connections))
        client.close()


async def test_a_client_that_leaves_before_the_answer_costs_nothing(tmp_path: Path) -> None:
    """While the origin is asked whether the shard changed."""
    async with opened(tmp_path) as (world, door):
        gate = world.origin.remotes[A].hold()
        client = await connected(tmp_path)
        client.send(encode_request(A, str(reader(job="other"))))
        await gate.reached.wait()
        client.close()
        await until(lambda: not len(door.connections))
        gate.open()
        await world.quiet()
        assert world.cache.fd_lender.count == 0


async def test_a_client_that_never_takes_its_descriptor_blocks_nobody(tmp_path: Path) -> None:
    """The answer waits in the kernel, with the lease; both go with the connection."""
    async with opened(tmp_path) as (world, _):
        idle = await connected(tmp_path)
        idle.send(encode_request(A, ""))
        await until(lambda: world.cache.fd_lender.count == 1)
        found = await asked(tmp_path)
        assert found.bytes() == DATA
        found.close()
        idle.close()
        await until(lambda: not world.cache.fd_lender.count)
        # a busy kernel may close what nobody took a little later: who lingers is asked about again, in the sidecar once a second
        await until(lambda: world.cache.fd_lender.look_again() or not world.cache.fd_lender.lingering)
        assert await world.reclaimer.evict(world.entry(A)) > 0


async def test_a_connection_asks_again_and_again(tmp_path: Path) -> None:
    """Each lease ends by its line, the others go on; the end of the connection ends them all."""
    async with opened(tmp_path) as (world, door):
        client = await connected(tmp_path)
        found = []
        for number in range(4):
            client.send(encode_request(A, f"job/{number}/0/1.1", lease=number))
            found.append(await heard(client))
            assert found[-1].bytes() == DATA
        assert (world.cache.fd_lender.count, len(door.connections)) == (4, 1)
        client.send(encode_end(2) + encode_end(0) + encode_end(77) + encode_request(B, ""))
        assert (await heard(client)).answer.status == 409
        assert {str(each.reader) for each in world.cache.readers} == {"job/1/0/1.1", "job/3/0/1.1"}
        client.close()
        await until(lambda: not world.cache.fd_lender.count)
        assert not world.cache.readers
        for each in found:
            assert each.bytes() == DATA
            each.close()


async def test_the_end_of_a_lease_counts_before_the_next_question(tmp_path: Path) -> None:
    """Though both come at once: where only one fits in half of the cache, the next one does."""
    async with opened(tmp_path, most=1) as (world, _):
        client = await connected(tmp_path)
        client.send(encode_request(A, "", lease=0))
        await heard(client)
        client.send(encode_request(A, "", lease=1))
        assert (await heard(client)).answer.status == 503
        client.send(encode_end(0) + encode_request(A, "", lease=1))
        second = await heard(client)
        assert (second.answer.status, world.cache.fd_lender.count) == (200, 1)


async def test_two_leases_of_one_number_are_cut_off(tmp_path: Path) -> None:
    """Nobody could say which of them a line ends."""
    async with opened(tmp_path) as (world, door):
        client = await connected(tmp_path)
        client.send(encode_request(A, "", lease=5))
        await heard(client)
        client.send(encode_request(A, "", lease=5))
        second = await heard(client)
        assert (second.answer.status, second.descriptor) == (0, None)
        assert (world.cache.fd_lender.count, len(door.connections)) == (0, 0)


async def test_a_question_before_the_answer_is_cut_off(tmp_path: Path) -> None:
    """Answers come in order, one at a time; an end of a lease may come at any time."""
    async with opened(tmp_path) as (world, door):
        gate = world.origin.remotes[A].hold()
        client = await connected(tmp_path)
        client.send(encode_request(A, "", lease=0))
        await heard(client)
        client.send(encode_request(A, str(reader(job="other")), lease=1))
        await gate.reached.wait()
        assert door.in_use
        client.send(encode_end(0))
        await until(lambda: not world.cache.fd_lender.count)
        assert len(door.connections) == 1
        client.send(encode_request(A, "", lease=2))
        await until(lambda: not len(door.connections))
        gate.open()
        await world.quiet()
        assert (world.cache.fd_lender.count, door.in_use) == (0, False)


async def test_a_connection_that_holds_nothing_keeps_nobody(tmp_path: Path) -> None:
    """An idle sidecar ends though its clients' connections are open for the next question."""
    async with opened(tmp_path) as (world, door):
        client = await connected(tmp_path)
        client.send(encode_request(A, "", lease=0))
        await heard(client)
        assert door.in_use
        client.send(encode_end(0))
        await until(lambda: not world.cache.fd_lender.count)
        assert (door.in_use, len(door.connections)) == (False, 1)


async def test_a_client_that_talks_nonsense_is_cut_off(tmp_path: Path) -> None:
    """With an answer; its leases end, and what it has it keeps."""
    async with opened(tmp_path) as (world, door):
        found = await asked(tmp_path)
        found.client.send(b"and another thing\n")
        await until(lambda: not world.cache.fd_lender.count)
        assert len(door.connections) == 0
        assert found.bytes() == DATA


async def test_closing_ends_all_leases(tmp_path: Path) -> None:
    """The path is free, nobody is inside; what a client has it keeps."""
    async with opened(tmp_path) as (world, door):
        found = await asked(tmp_path)
        await door.aclose()
        await door.aclose()
        assert (world.cache.fd_lender.count, len(door.connections), door.path, (tmp_path / "s.fd").exists()) == (0, 0, None, False)
        assert found.bytes() == DATA


async def test_a_door_that_is_taken_is_a_config_error(tmp_path: Path) -> None:
    """A live one's, never replaced."""
    async with opened(tmp_path) as (world, _):
        second = FdServer(
            cache=world.cache.fd_lender, access=Access(os.getuid()), events=world.events, group=world.group, clock=time.monotonic
        )
        with pytest.raises(ConfigError):
            second.open(tmp_path / "s.fd")
        second.open_beside(tmp_path / "s", can_lend=True)
        assert second.path is None


async def test_no_door_where_a_lease_does_not_hold(tmp_path: Path) -> None:
    """Nor without an HTTP socket to stand beside."""
    async with opened(tmp_path) as (world, _):
        for place, can_lend in ((tmp_path / "other", False), (None, True)):
            door = FdServer(
                cache=world.cache.fd_lender, access=Access(os.getuid()), events=world.events, group=world.group, clock=time.monotonic
            )
            door.open_beside(place, can_lend=can_lend)
            assert door.path is None
