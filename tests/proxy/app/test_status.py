"""How things stand, told to whoever asks."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from support.house import SEGMENT, World, building, data_of, reader, shard_of
from support.tarmaking import hand_header

from forebay_proxy.app.status import StatusReport, TelemetryParts
from forebay_proxy.core.events import RequestFailed
from forebay_proxy.core.facts.origins import OriginAnswered, OriginBytes, OriginFailed
from forebay_proxy.core.facts.requests import RequestDone, RequestOutcome
from forebay_proxy.telemetry.prometheus.metrics import Metrics
from forebay_proxy.telemetry.waits import OPENING
from forebay_proxy.wire.protocol.meter import CAUSES, MeterBody
from forebay_proxy.wire.protocol.plan import ReaderName

A = "https://o/set/a.tar"
B = "https://o/set/b.tar"


def report_on(world: World) -> tuple[StatusReport, TelemetryParts]:
    telemetry = TelemetryParts.build(world.events, world.clock, SEGMENT)
    return StatusReport(world.parts, telemetry, "ab" * 8, world.clock), telemetry


async def test_levels_and_status_agree_with_the_ledger(tmp_path: Path) -> None:
    """A reader inside, a plan ahead, bytes here."""
    async with building(tmp_path / "c", segments=100) as world:
        asked, _ = report_on(world)
        world.origin.put(A, data_of(2 * SEGMENT))
        world.origin.put(B, data_of(3 * SEGMENT))
        await world.get(B)
        world.plans.replace(reader(), [shard_of(A), shard_of(B)])
        async with world.opened(A, reader()) as reading:
            await world.taken(reading, 10)
            await world.quiet()
            usage, status = asked.usage(), asked.status()
            assert (usage.stored_bytes, usage.shards, usage.segments, usage.readers, usage.plans) == (5 * SEGMENT, 2, 5, 1, 1)
            assert usage.leased_bytes == 2 * SEGMENT
            assert usage.peak_bytes >= 5 * SEGMENT
            assert usage.lead_bytes == {"job": 3 * SEGMENT}
            assert status["cache"]["stored_bytes"] == usage.stored_bytes
            (told,) = status["readers"]
            assert (told["reader"], told["shard"], told["length_bytes"]) == (str(reader()), A, 2 * SEGMENT)
            (plan,) = status["plans"]
            assert (plan["position"], plan["length"], plan["lead_bytes"], status["plans_total"]) == (1, 2, 3 * SEGMENT, 1)
            assert status["leads"] == {"job": {"bytes": 3 * SEGMENT, "seconds": usage.lead_s["job"]}}
            assert [(each["position"], each["length"], each["of"]) for each in status["progress"]] == [(1, 2, None)]
            assert asked.announced()["instance"] == "ab" * 8
            assert asked.announced()["plans"] == status["plans"]
            world.plans.replace(reader(), [shard_of(A), shard_of(B)], set_name="https://o/set/{a,b,c}.tar")
            assert asked.status()["progress"][0]["of"] == 3


async def test_a_killed_training_is_told_of_without_what_it_waited_for(tmp_path: Path) -> None:
    """That is no longer so."""
    async with building(tmp_path / "c") as world:
        asked, telemetry = report_on(world)
        telemetry.meters.take(
            ReaderName("job", "0", "main", "7.0"), MeterBody(9.0, dict.fromkeys(CAUSES, 0.0) | {"origin": 9.0}, 5, pending="origin")
        )
        asked.look()
        world.clock.advance(240)
        asked.look()
        status = asked.status()
        assert [row["what"] for row in status["events"]] == [
            "job job, rank 0: silent for a minute, and did not end: killed, or hung?", "job job began: rank 0"
        ]  # fmt: skip
        assert [row["silent"] for row in status["meters"]] == ["silent for 4 min: killed, or hung?"]
        assert (status["verdict"]["severity"], status["verdict"]["share"]) == ("look", None)
        assert status["verdict"]["sentence"].startswith("job rank 0 is silent for 4 min: killed, or hung?; nobody has read")
        assert asked.meter_page("job")["ranks"] == []


async def test_it_can_be_asked_before_it_listens(tmp_path: Path) -> None:
    """Nothing is known of directory and notices then."""
    async with building(tmp_path / "c") as world:
        asked, _ = report_on(world)
        status = asked.status()
        assert (status["cache_dir"], status["notices"], status["readers"]) == (None, [], [])
        assert asked.usage().avail_bytes == 0


async def test_a_reader_that_waits_for_a_first_answer_is_one_that_waits(tmp_path: Path) -> None:
    """In an outage there is no flight to wait for."""
    async with building(tmp_path / "c") as world:
        asked, _ = report_on(world)
        with world.cache.readers.waits.waiting(reader(), A, "https://o", OPENING):
            assert (asked.usage().waiters, asked.usage().readers) == (1, 1)


async def test_who_read_between_two_looks_was_there(tmp_path: Path) -> None:
    """Small warm shards take milliseconds each: their reader is never seen inside one, and "nobody has read" is not true."""
    async with building(tmp_path / "c") as world:
        asked, telemetry = report_on(world)
        assert asked.readers_lately() == 0
        telemetry.counters.listen(RequestDone("GET", 200, RequestOutcome.HIT, 10, 0.001, 0.001))
        assert [asked.readers_lately(), asked.readers_lately()] == [1, 0]
        telemetry.recent_errors.listen(RequestFailed(404, "shard s3://b/a.tar: not there"))
        assert asked.status()["verdict"]["sentence"].endswith("was told: shard s3://b/a.tar: not there")


@pytest.mark.parametrize(
    ("sets", "line"),
    [
        (["https://o/set/{a..b}.tar"], "forebay warm 'https://o/set/{a..b}.tar'"),
        (["https://o/set/{a..b}.tar?key=1"], "forebay warm 'PATTERN'"),
        (["cats"], "forebay warm 'PATTERN'"),
        (["https://o/set/{a..b}.tar", "https://o/dogs/{a..b}.tar"], "forebay warm 'PATTERN'"),
    ],
)
async def test_the_set_that_is_read_is_in_the_line_to_type(sets: list[str], line: str, tmp_path: Path) -> None:
    """Where there is one, that says all and no secret."""
    async with building(tmp_path / "c") as world:
        asked, telemetry = report_on(world)
        for number, name in enumerate(sets):
            world.plans.replace(reader(number), [shard_of(A), shard_of(B)], None, name)
        telemetry.meters.take(ReaderName("job", "0", "main", "7.0"), MeterBody(9.0, dict.fromkeys(CAUSES, 0.0) | {"origin": 9.0}, 5))
        world.events.emit(OriginAnswered("https://o", "GET", 206, 0.1))
        world.events.emit(OriginBytes("https://o", 1, "demand"))
        assert asked.verdict().line == line


async def test_a_scrape_of_a_large_node_is_short(tmp_path: Path) -> None:
    """1,000 shards announced by 64 readers, each inside one, 8 ranks, 10 origins: some 1,100 lines, each no more than a few times
    the work of one line without them."""
    names = [f"https://o{number % 10}.example/train-{number:06d}.tar" for number in range(1000)]
    shards = [*map(shard_of, names)]
    async with building(tmp_path / "c") as world, AsyncExitStack() as readings:
        _, telemetry = report_on(world)
        for number in range(64):
            name = names[number]
            world.origin.put(name, hand_header(b"0.bin", SEGMENT - 1536) + data_of(SEGMENT - 512))
            who = ReaderName("job", str(number // 8), str(number % 8), f"{number}.0")
            world.plans.replace(who, shards[number:])
            await world.taken(await readings.enter_async_context(world.opened(name, who)), 10)
            telemetry.meters.take(ReaderName("job", who.rank, "main", "7.0"), MeterBody(9.0, dict.fromkeys(CAUSES, 1.0), 5))
        for origin in {shard.origin for shard in shards}:
            for fact in (OriginAnswered(origin, "GET", 206, 0.1), OriginBytes(origin, 1, "demand"), OriginFailed(origin, "throttled")):
                world.events.emit(fact)
        text = telemetry.metrics.render()[0].decode()
        assert "\nforebay_readers 64.0\n" in text
        lines, least = len(text.splitlines()), len((empty := Metrics()).render()[0].splitlines())
        assert 1000 < lines <= 2000
        spent, ordinary = best(telemetry.metrics.render), best(empty.render)
        print(f"{lines} lines in {1000 * spent:.1f} ms; without anything {least} in {1000 * ordinary:.1f} ms")
        assert spent < 4 * ordinary * lines / least


def best(work: Callable[[], object], times: int = 7) -> float:
    """Seconds of the processor."""
    spent = []
    for _ in range(times):
        began = time.process_time()
        work()
        spent.append(time.process_time() - began)
    return min(spent)
