"""How much half a million plan entries cost the event loop: registering them, holding them, deciding with them. Exits 1 at a broken limit.

A real asyncio loop, plan intake, plans, scheduler and eviction order; no sockets, no disk: what is measured is one core's work. Decisions
are means over all of them, in processor time (held against the limit) and by the clock. A task that wants to run every millisecond measures
what the loop keeps others waiting, by the clock: on a core that other processes take part of, that is theirs too.

    python benchmarks/registration.py [--json] [--entries 585270] [--readers 1024]
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import sys
import time
from array import array
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1] / "proxy")]

from figures import Figure, as_json, at_most, lines  # noqa: E402

from forebay_proxy.background.plan_intake import PlanIntake  # noqa: E402
from forebay_proxy.core.events import Events  # noqa: E402
from forebay_proxy.core.segments import DEFAULT_LAYOUT  # noqa: E402
from forebay_proxy.policy.eviction.eviction_queue import EvictionQueue  # noqa: E402
from forebay_proxy.policy.plans.registry import NextUseChanged, PlanRegistry  # noqa: E402
from forebay_proxy.policy.schedule.scheduler import PrefetchScheduler  # noqa: E402
from forebay_proxy.server.http.plan_route import _PARSE_ON_LOOP_BYTES, _breathe, parse_plan  # noqa: E402
from forebay_proxy.wire.protocol.plan import Encoded, ReaderName, encode  # noqa: E402

SET = "s3://laion/{laion2B-en,laion2B-multi,laion1B-nolang}/images/part-{0..9}/{000000..%06d}.tar"
TICK_S = 0.001
AHEAD = 64  # what a resampling reader keeps announced
STORED = 20_000  # shards in the cache when something must leave: five terabytes of 250 MB
DECISIONS = 20_000


class NoPrefetcher:
    def wake(self) -> None: ...


class Lag:
    """How long the loop let a task wait beyond its time, as often as it asked."""

    def __init__(self) -> None:
        self.began = self.took_s = 0.0
        self.late: list[float] = []
        self.busy: list[float] = []  # the same without what other processes took of the core

    async def watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due, before = loop.time() + TICK_S, time.thread_time()
            await asyncio.sleep(TICK_S)
            self.late.append(max(0.0, loop.time() - due))
            self.busy.append(time.thread_time() - before)

    def figures(self) -> list[Figure]:
        return [
            Figure("    by the clock", self.took_s, "s"),
            at_most("  loop lag p99", 1e3 * percentile(self.late, 0.99), 20.0, "ms"),
            Figure("  loop lag max", 1e3 * max(self.late), "ms"),
            Figure("  of it the loop's own work, p99", 1e3 * percentile(self.busy, 0.99), "ms"),
        ]


def percentile(values: list[float], part: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * part))]


def rss_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def reader_of(number: int, job: str) -> ReaderName:
    return ReaderName(job, str(number // 32), str(number % 32), "1.1")


async def registered(intake: PlanIntake, bodies: list[tuple[ReaderName, Encoded]]) -> tuple[float, Lag]:
    """Every body parsed, as the server does, and taken, all handed in at once: (seconds, the loop's lag meanwhile)."""
    lag, loop = Lag(), asyncio.get_running_loop()
    watching = asyncio.create_task(lag.watch())
    await asyncio.sleep(0.01)

    async def one(reader: ReaderName, encoded: Encoded) -> None:
        arguments = (encoded.content_type, encoded.body, encoded.query, (), False)
        if len(encoded.body) <= _PARSE_ON_LOOP_BYTES:
            plan, shards = parse_plan(*arguments)
        else:
            plan, shards = await loop.run_in_executor(parser, parse_plan, *arguments, _breathe)
        await intake.announce(reader, plan, shards)

    lag.began, used = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(1) as parser:
        waiting, arriving = set[asyncio.Task[None]](), iter(bodies)
        for reader, encoded in arriving:  # as connections would bring them: a few in each round of the loop
            waiting.add(asyncio.create_task(one(reader, encoded)))
            if len(waiting) % 4 == 0:
                await asyncio.sleep(0)
        await asyncio.gather(*waiting)
    seconds, lag.took_s = time.process_time() - used, time.perf_counter() - lag.began
    watching.cancel()
    return seconds, lag


def timed(what: str, action: Callable[[int], object], count: int, limit: float | None = None) -> list[Figure]:
    """The mean of ``count`` actions, in processor time and by the clock."""
    began, used = time.perf_counter(), time.process_time()
    for number in range(count):
        action(number)
    used, took = time.process_time() - used, time.perf_counter() - began
    mean, wall = used / count * 1e6, took / count * 1e6
    return [at_most(what, mean, limit, "us") if limit else Figure(what, mean, "us"), Figure("    by the clock", wall, "us")]


async def whole_epoch(entries: int, readers: int) -> list[Figure]:
    """Each shard of a set once, over all readers, as indices into the set's pattern."""
    text = SET % (entries // 30 - 1)
    order = array("I", range(entries // 30 * 30))
    random.Random(1).shuffle(order)
    bodies = [(reader_of(number, "epoch"), encode(set=text, indices=order[number::readers], epoch=1)) for number in range(readers)]
    events = Events()
    plans = PlanRegistry(time.monotonic, events)
    intake: Any = PlanIntake(plans, NoPrefetcher(), events)  # type: ignore[arg-type]
    before = rss_bytes()
    seconds, lag = await registered(intake, bodies)
    held = rss_bytes() - before
    count = len(order)
    figures = [
        at_most(f"{count} entries of {readers} readers registered", seconds, 5.0, "s"),
        *lag.figures(),
        at_most("  memory an entry", held / count, 150.0, "B"),
    ]
    return figures + decisions(plans, readers, events)


def decisions(plans: PlanRegistry, readers: int, events: Events) -> list[Figure]:
    everyone, chance = plans.all(), random.Random(2)
    names = dict[str, str]()
    for number in range(STORED):
        plan = everyone[number % readers]
        names[f"{number:064x}"] = plans.shard_at(plan, chance.randrange(len(plan))).name
    groups = {key: name[: name.rfind("/") + 1] for key, name in names.items()}
    eviction_queue = EvictionQueue(lambda key: plans.next_use(names[key], groups[key]) if key in names else None)
    keys = {name: key for key, name in names.items()}
    events.on(NextUseChanged, lambda fact: [eviction_queue.touch(keys[name]) for name in fact.names if name in keys])
    stored = list(names)
    touching = timed("  putting a stored shard in its place", lambda number: eviction_queue.touch(stored[number]), STORED)

    fair_queue = [(everyone[number % readers], number // readers) for number in range(DECISIONS)]
    coming = [(plans.shard_at(plan, plan.position + turn), plan.reader) for plan, turn in fair_queue]

    def advance(number: int) -> None:
        plans.opened(*coming[number])

    def victim(_: int) -> None:
        order = eviction_queue.order()
        _, key = next(order)
        order.close()  # type: ignore[attr-defined]
        keys.pop(names.pop(key), None)
        eviction_queue.touch(key)

    advancing = timed("  an advance", advance, DECISIONS, 15.0)
    leaving_first = timed("  the next victim", victim, STORED // 2, 15.0)
    return [*touching, *advancing, *leaving_first, *wishes(plans)]


class Empty:
    """A cache that holds nothing but its shards' lengths, and origins that take all: each decision finds something to fetch."""

    layout = DEFAULT_LAYOUT

    def capacity(self) -> int:
        return 5 << 40

    def length(self, name: str) -> int | None:
        return 250 << 20

    def has(self, name: str, index: int) -> bool:
        return False

    def fresh(self, name: str, job: str) -> bool:
        return True

    def may_ask(self, origin: str) -> bool:
        return True


def wishes(plans: PlanRegistry) -> list[Figure]:
    """What to fetch next, over all readers."""
    scheduler = PrefetchScheduler(plans, Empty())
    for plan in plans.all():
        scheduler.advanced(plan)
    made = 0

    def request(_: int) -> None:
        nonlocal made
        made += scheduler.next() is not None

    count = 16 * len(scheduler.readers)  # fewer than all their windows hold
    figures = timed("  the next wish", request, count, 15.0)
    assert made > 0.9 * count, made
    return figures


async def resampled(entries: int, readers: int) -> list[Figure]:
    """So many draws announced by each reader, from the whole set."""
    text, chance = SET % (entries // 30 - 1), random.Random(3)
    many = entries // 30 * 30
    draws = [[chance.randrange(many) for _ in range(AHEAD)] for _ in range(readers)]
    bodies = [(reader_of(number, "resampled"), encode(set=text, indices=drawn)) for number, drawn in enumerate(draws)]
    events = Events()
    plans = PlanRegistry(time.monotonic, events)
    intake: Any = PlanIntake(plans, NoPrefetcher(), events)  # type: ignore[arg-type]
    seconds, lag = await registered(intake, bodies)
    return [
        at_most(f"{AHEAD} draws announced by each of {readers}", seconds, 5.0, "s"),
        *lag.figures(),
        *decisions(plans, readers, events),
    ]


async def one_reader(entries: int) -> list[Figure]:
    """One reader that announces all, as indices and as URLs, parsed in the parser's thread."""
    text = SET % (entries // 30 - 1)
    order = list(range(entries // 30 * 30))
    random.Random(4).shuffle(order)
    figures: list[Figure] = []
    for what, encoded in (
        ("indices", encode(set=text, indices=order)),
        ("URLs", encode([f"s3://laion/laion2B-en/images/part-{number % 10}/{number:06d}.tar" for number in order])),
    ):
        intake: Any = PlanIntake(PlanRegistry(time.monotonic), NoPrefetcher(), Events())  # type: ignore[arg-type]
        seconds, lag = await registered(intake, [(reader_of(0, "one"), encoded)])
        figures += [Figure(f"{len(order)} {what} of one reader", seconds, "s"), *lag.figures()]
    return figures


async def measured(entries: int, readers: int) -> list[Figure]:
    return [*await whole_epoch(entries, readers), *await resampled(entries, readers), *await one_reader(entries)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--entries", type=int, default=585_270)
    parser.add_argument("--readers", type=int, default=1024)
    given = parser.parse_args()
    figures = asyncio.run(measured(given.entries, given.readers))
    command = f"python benchmarks/registration.py --entries {given.entries} --readers {given.readers}"
    print(as_json("registration", command, figures) if given.json else "\n".join(lines(figures)))
    sys.exit(not all(figure.ok for figure in figures))


if __name__ == "__main__":
    main()
