"""64 sidecars around one shared tier, on a clock that jumps: the real ``SharedTier``; store, origin and readers are modelled.

    python benchmarks/cluster_simulation.py [same] [shuffled] [deaths] [store] [--quick] [--json] [--nodes 64] [--shards 48] [--seed 1]

same       all nodes read the set in the same order
shuffled   each node has an order of its own
deaths     as ``same``; eight nodes die, one each five seconds, and each comes back a minute later with an empty cache
store      as ``same``; the store answers nothing for a minute

A shard is 100 MB: twelve segments of 8 MiB. The far origin answers after 50 ms with 50 MB/s a connection and 250 MB/s in all, the store
after 5 ms with 500 MB/s and 20 GB/s. A node takes 40 MB/s, opens eight shards ahead of its reader and fetches eight segments at a time,
so all 64 together take ten times what the origin gives. A segment is simulated by 1 KiB; its bytes and checksums are compared. Not
modelled: the origin's limiter, a full cache, lost packets. Without a name all parts run, in some two minutes. Exit code 1 if a limit is
broken.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import selectors
import sys
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import xxhash

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("tests", "proxy", "benchmarks")]

from figures import Figure, as_json, at_least, at_most, exactly, lines  # noqa: E402
from support.shared_stores import FakeSharedStore  # noqa: E402

from forebay_proxy.core.errors import OriginTimeout  # noqa: E402
from forebay_proxy.core.events import Events  # noqa: E402
from forebay_proxy.core.segments import SegmentLayout  # noqa: E402
from forebay_proxy.core.shard import ByteRange, Pin, PinKind, Shard, Version  # noqa: E402
from forebay_proxy.shared.shared_store import StoreRefused  # noqa: E402
from forebay_proxy.shared.shared_tier import ANSWER_S, MOST_DEMAND_WAIT_S, MOST_POLL_S, WAIT_S, SharedTier  # noqa: E402
from forebay_proxy.transfer.limiter import AHEAD  # noqa: E402
from forebay_proxy.transfer.single_flight import Urgency  # noqa: E402
from forebay_proxy.wire.urls.shard_url import parse_origin_url  # noqa: E402

SEGMENT = 1024  # bytes that stand for 8 MiB
SCALE = (8 << 20) // SEGMENT
SEGMENTS = 12
LENGTH = SEGMENTS * SEGMENT
LAYOUT = SegmentLayout(SEGMENT)
FAR_LATENCY_S, FAR_CONNECTION, FAR_TOGETHER = 0.05, 50e6, 250e6
STORE_LATENCY_S, STORE_CONNECTION, STORE_TOGETHER = 0.005, 500e6, 20e9
TAKES = 40e6
OPEN_SHARDS, AT_A_TIME = 8, 8
HUNG_S = 8.0  # then the SDK gives up a call
POLL_SLACK_S = MOST_POLL_S + 3 * ANSWER_S  # a wait ends at a poll: its pause, a look for the manifest and one at the lease, and a last look
LOST_S = 60.0
READS = frozenset(("get", "read", "piece"))


class Clock(selectors.SelectSelector):
    """The loop's: nothing comes from outside, so whenever the loop would wait, time jumps."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("all tasks wait for one another")
        self.now += max(0.0, timeout)
        return []


class Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.jumps = Clock()
        super().__init__(self.jumps)

    def time(self) -> float:
        return self.jumps.now


class Line:
    """Carries bytes one after another, each connection no faster than its own rate."""

    def __init__(self, together: float, connection: float) -> None:
        self._together, self._connection = together, connection
        self._free_at = 0.0

    async def carry(self, size: int) -> None:
        now = asyncio.get_running_loop().time()
        self._free_at = max(self._free_at, now) + size * SCALE / self._together
        await asyncio.sleep(max(self._free_at - now, size * SCALE / self._connection))


@dataclass
class Cluster:
    """What all nodes share, and what is counted."""

    shards: int
    line: Line
    far_line: Line = field(default_factory=lambda: Line(FAR_TOGETHER, FAR_CONNECTION))
    objects: dict[str, tuple[bytes, str, float]] = field(default_factory=dict)
    lost: bool = False  # the store
    requests: Counter[tuple[int, str]] = field(default_factory=Counter)  # (second, what) at the store
    heads: int = 0
    far: Counter[int] = field(default_factory=Counter)  # bytes by shard
    seconds: float = 0.0
    demand_waits: list[float] = field(default_factory=list)
    ahead_waits: list[float] = field(default_factory=list)
    stalls: list[float] = field(default_factory=list)
    wrong: int = 0
    read_whole: int = 0

    def __post_init__(self) -> None:
        self.data = [random.Random(number).randbytes(LENGTH) for number in range(self.shards)]
        self.files = [os.memfd_create(f"shard-{number}") for number in range(self.shards)]
        for file, data in zip(self.files, self.data, strict=True):
            os.write(file, data)
        self.sums = [
            tuple(xxhash.xxh3_64_intdigest(data[at : at + SEGMENT]) or 1 for at in range(0, LENGTH, SEGMENT)) for data in self.data
        ]
        self.names = [Shard.of(parse_origin_url(f"https://far/set/{number:05}.tar"), ()) for number in range(self.shards)]
        self.numbers = {shard.name: number for number, shard in enumerate(self.names)}
        self.versions = [Version(f'etag:"{number}"', Pin(PinKind.ETAG, f'"{number}"'), LENGTH) for number in range(self.shards)]

    def close(self) -> None:
        for file in self.files:
            os.close(file)


class Store(FakeSharedStore):
    """One node's way to the objects of all: two threads for small calls and one for shards, as ``SharedStore`` has."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(asyncio.get_running_loop().time)
        self.cluster, self.objects, self.chunk_bytes = cluster, cluster.objects, SEGMENT // 4
        self._threads = {"put_shard": asyncio.Semaphore(1), "small": asyncio.Semaphore(2)}

    async def _does(self, what: str, name: str) -> None:
        if what == "piece":
            if self.cluster.lost:
                await self._hangs(what, name)
            await self.cluster.line.carry(self.chunk_bytes)
            return
        self.cluster.requests[int(self.clock()), what] += 1
        if what in READS:
            await self._answers(what, name)
            return
        async with self._threads["put_shard" if what == "put_shard" else "small"]:
            if what == "put_shard":
                await self.cluster.line.carry(LENGTH)
            await self._answers(what, name)

    async def _answers(self, what: str, name: str) -> None:
        if self.cluster.lost:
            await self._hangs(what, name)
        await asyncio.sleep(STORE_LATENCY_S)

    async def _hangs(self, what: str, name: str) -> None:
        await asyncio.sleep(HUNG_S)
        raise OriginTimeout(name, "no answer") if what in READS else StoreRefused("unavailable", "ReadTimeoutError")


class Node:
    """A sidecar and its reader. Above the tier: shards are opened in the reader's order, segments fetched, whole ones written."""

    def __init__(self, cluster: Cluster, number: int, order: Sequence[int]) -> None:
        self.cluster, self.order = cluster, order
        self.done = 0  # shards that the reader has had
        clock = asyncio.get_running_loop().time
        self.tier = SharedTier(Store(cluster), LAYOUT, self._head, Events(), clock=clock, sleep=asyncio.sleep, chance=random.Random(number))  # type: ignore[arg-type]
        self._clock = clock
        self._waiting: deque[int] = deque()
        self._come = asyncio.Event()
        self._requests = asyncio.Semaphore(AT_A_TIME)

    async def run(self) -> None:
        """Until the reader has had all."""
        async with asyncio.TaskGroup() as group:
            ends = [group.create_task(self.tier.run()), group.create_task(self._writes())]
            open_shards = asyncio.Semaphore(OPEN_SHARDS)
            left = self.order[self.done :]
            needs = [Urgency(AHEAD + place) for place in range(len(left))]
            reader = group.create_task(self._reads(left, needs, group, open_shards))
            await reader
            while self._waiting:
                await asyncio.sleep(0.1)
            await asyncio.sleep(10.0)  # the last is written
            for each in ends:
                each.cancel()
        await self.tier.aclose()

    async def _reads(self, left: Sequence[int], needs: list[Urgency], group: asyncio.TaskGroup, open_shards: asyncio.Semaphore) -> None:
        fetches: deque[asyncio.Task[None]] = deque()
        moments: list[list[float]] = [[] for _ in left]

        async def fetched(place: int) -> None:
            async with open_shards:
                await self._fetch(left[place], needs[place], moments[place])

        for place in range(len(left)):
            while len(fetches) < OPEN_SHARDS and place + len(fetches) < len(left):
                fetches.append(group.create_task(fetched(place + len(fetches))))
            began = self._clock()
            needs[place].need = 0.0
            moments[place].append(began)
            self.tier.hurried()
            await fetches.popleft()
            self.cluster.stalls.append(self._clock() - began)
            self.done += 1
            self.cluster.read_whole += 1
            await asyncio.sleep(LENGTH * SCALE / TAKES)

    async def _fetch(self, number: int, need: Urgency, urgent: list[float]) -> None:
        shard, version = self.cluster.names[number], self.cluster.versions[number]
        begun = self._clock()
        await self._segment(number, 0, Pin(), need, lambda: self._waited(begun, urgent))
        async with asyncio.TaskGroup() as group:
            for index in range(1, SEGMENTS):
                group.create_task(self._segment(number, index, version.pin, need))
        if self.tier.to_write(shard.name, version):
            self._waiting.append(number)
            self._come.set()
        else:
            self.tier.let_go(shard.name)

    def _waited(self, begun: float, urgent: list[float]) -> None:
        """The tier has been asked, and said what it has."""
        now = self._clock()
        (self.cluster.demand_waits if urgent else self.cluster.ahead_waits).append(now - max([begun, *urgent]))

    async def _segment(self, number: int, index: int, pin: Pin, need: Urgency, opened: Callable[[], None] | None = None) -> None:
        shard, first = self.cluster.names[number], index * SEGMENT
        right = self.cluster.data[number][first : first + SEGMENT]
        async with self._place(opened):
            async with self.tier.asked(shard, ByteRange(first, first + SEGMENT - 1), pin, need) as found:
                if opened is not None:
                    opened()
                if found is not None:
                    data = b"".join([bytes(piece) async for piece in found[0].chunks])
                    self.cluster.wrong += data != right
                    return
            await asyncio.sleep(FAR_LATENCY_S)
            await self.cluster.far_line.carry(SEGMENT)
            self.cluster.far[number] += SEGMENT
            self.tier.answered(shard, pin, self.cluster.versions[number])

    @asynccontextmanager
    async def _place(self, opened: Callable[[], None] | None) -> AsyncIterator[None]:
        """One of so many requests at a time; an opening may wait for another node, and takes none."""
        if opened is not None:
            yield
            return
        async with self._requests:
            yield

    async def _head(self, shard: Shard, need: object, within_s: float) -> Version:
        self.cluster.heads += 1
        await asyncio.sleep(FAR_LATENCY_S)
        return self.cluster.versions[self.cluster.numbers[shard.name]]

    async def _writes(self) -> None:
        """As ``SharedWriter``."""
        while True:
            await self._come.wait()
            self._come.clear()
            while self._waiting:
                number = self._waiting.popleft()
                shard, version = self.cluster.names[number], self.cluster.versions[number]
                if self.tier.to_write(shard.name, version):
                    await self.tier.wrote(shard.name, version, self.cluster.files[number], self.cluster.sums[number])
                else:
                    self.tier.let_go(shard.name)


@dataclass(frozen=True)
class Given:
    nodes: int
    shards: int
    seed: int
    store_gb: float


async def _all(
    cluster: Cluster, orders: Sequence[Sequence[int]], trouble: Callable[[list[asyncio.Task[None]], list[Node]], Awaitable[None]]
) -> None:
    """Every node reads; a task that ``trouble`` cancels is a node that died."""
    nodes = [Node(cluster, number, order) for number, order in enumerate(orders)]
    tasks = [asyncio.ensure_future(node.run()) for node in nodes]
    await trouble(tasks, nodes)
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task


async def _none(tasks: list[asyncio.Task[None]], nodes: list[Node]) -> None:
    """Nothing goes wrong."""


def simulated(given: Given, *, shuffled: bool = False, deaths: int = 0, lost: bool = False) -> Cluster:
    """One part, to its end."""
    cluster = Cluster(given.shards, Line(given.store_gb * 1e9, STORE_CONNECTION))
    orders = [list(range(given.shards)) for _ in range(given.nodes)]
    if shuffled:
        for number, order in enumerate(orders):
            random.Random(f"{given.seed} {number}").shuffle(order)

    async def dying(tasks: list[asyncio.Task[None]], nodes: list[Node]) -> None:
        back: list[asyncio.Task[None]] = []

        async def comes_back(number: int) -> None:
            await asyncio.sleep(LOST_S)
            again = Node(cluster, given.nodes + number, orders[number])
            again.done = nodes[number].done
            await again.run()

        await asyncio.sleep(3.0)
        for _ in range(deaths):
            # Whoever holds most leases dies: the worst that a death can do.
            number = max((at for at in range(given.nodes) if not tasks[at].done()), key=lambda at: len(nodes[at].tier._mine))
            tasks[number].cancel()
            await asyncio.sleep(0)
            back.append(asyncio.ensure_future(comes_back(number)))
            await asyncio.sleep(5.0)
        tasks.extend(back)

    async def losing(tasks: list[asyncio.Task[None]], nodes: list[Node]) -> None:
        await asyncio.sleep(20.0)
        cluster.lost = True
        await asyncio.sleep(LOST_S)
        cluster.lost = False

    trouble = dying if deaths else losing if lost else _none
    logging.getLogger("forebay").setLevel(logging.ERROR)
    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(_all(cluster, orders, trouble))
        cluster.seconds = runner.get_loop().time()
    cluster.close()
    return cluster


def figures_of(name: str, given: Given, cluster: Cluster, *, deaths: int = 0, shuffled: bool = False, lost: bool = False) -> list[Figure]:
    """``shuffled`` at a cold start and a slow origin: each shard may be fetched by one more sidecar."""
    times = [cluster.far[number] / LENGTH for number in range(given.shards)]
    in_second, by_what = Counter[int](), Counter[str]()
    for (second, what), count in cluster.requests.items():
        in_second[second] += count
        by_what[what] += count
    openings = given.nodes * given.shards
    most = given.nodes if lost else 2 if shuffled else 1 + deaths
    demand, ahead = max(cluster.demand_waits, default=0.0), max(cluster.ahead_waits, default=0.0)
    return [
        Figure(f"{name}: far bytes", round(sum(times) / given.shards, 4), "x set"),
        at_least(f"{name}: least that a shard was fetched", min(times), 1, "times"),
        at_most(f"{name}: most that a shard was fetched", round(max(times), 2), most, "times"),
        Figure(f"{name}: requests of the store in its busiest second", max(in_second.values())),
        Figure(f"{name}: of all in the run, a node and second", round(sum(in_second.values()) / given.nodes / cluster.seconds, 2)),
        Figure(
            f"{name}: for leases and manifests, a shard and node",
            round((by_what["take"] + by_what["age"] + by_what["get"]) / openings, 2),
        ),
        at_most(f"{name}: longest wait for the tier with a reader", round(demand, 2), MOST_DEMAND_WAIT_S + POLL_SLACK_S, "s"),
        at_most(f"{name}: longest wait for the tier ahead of need", round(ahead, 2), WAIT_S + POLL_SLACK_S, "s"),
        Figure(f"{name}: longest stall of a reader", round(max(cluster.stalls), 2), "s"),
        Figure(f"{name}: until all had read", round(cluster.seconds, 1), "s"),
        exactly(f"{name}: shards that readers had", cluster.read_whole, openings),
        exactly(f"{name}: wrong segments", cluster.wrong, 0),
        exactly(f"{name}: leases left", sum(".lease" in key for key in cluster.objects), 0),
    ]


PARTS: dict[str, dict[str, Any]] = {"same": {}, "shuffled": {"shuffled": True}, "deaths": {"deaths": 8}, "store": {"lost": True}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="16 nodes, 16 shards")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--shards", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store-gb", type=float, default=STORE_TOGETHER / 1e9, help="GB/s of the store (default: %(default)g)")
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    size = Given(given.nodes or (16 if given.quick else 64), given.shards or (16 if given.quick else 48), given.seed, given.store_gb)
    figures: list[Figure] = []
    for part in given.parts or PARTS:
        figures += figures_of(part, size, simulated(size, **PARTS[part]), **PARTS[part])
    command = " ".join(["python benchmarks/cluster_simulation.py", *(part for part in sys.argv[1:] if part != "--json")])
    print(as_json("cluster simulation", command, figures) if given.json else "\n".join(lines(figures)))
    return 0 if all(figure.ok for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
