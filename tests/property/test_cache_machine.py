"""Any sequence of reads, plans, changes, evictions, kills, power cuts and damaged files: the right bytes, inside the bound, no leftovers.

The model is a dictionary: what bytes each version of each shard has. The cache is the real one on a real directory, its origin a fake
that is always well: so every read must succeed, and with a job of its own (which asks the origin what is current) it must be the newest
version; within an old job it may be any version that ever was, but one of them, never a mixture.

Two readers announce what they read, and depart from it. Prefetch follows them, and passes by nothing that is missing.

What a power cut may have done is anything, to any file: under another boot id the checksum decides. Under the same boot the page cache is
trusted, and what is promised is what shows without reading every byte again: see ``SAME_BOOT_DAMAGES`` for the shard files; the index and
the key may be damaged in any way.

FOREBAY_MACHINE_STEPS and FOREBAY_MACHINE_RUNS ask for more (40 and 6; 15 in a long run), FOREBAY_MACHINE_SHRINK for the shortest way to
a failure.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test
from support.crashing import DAMAGES, FILE_DAMAGES, SAME_BOOT_DAMAGES, Instants, damage
from support.fake_origin import FakeOrigin
from support.house import LAYOUT, SEGMENT, World, building, data_of, reader, shard_of
from support.lengths import ordinarily

from forebay_proxy.core.errors import DiskFailed, ShardChanged
from forebay_proxy.policy.eviction.read_ahead import FEW
from forebay_proxy.policy.plans.registry import SILENCE_S
from forebay_proxy.wire.protocol.plan import ReaderName

STEPS = int(os.environ.get("FOREBAY_MACHINE_STEPS", "40"))
RUNS = int(os.environ.get("FOREBAY_MACHINE_RUNS", ordinarily(4, of=15, what="runs of the cache machine")))
# Real threads on a real disk do not repeat themselves to the last step: making a failure small takes minutes, if it can be done at all.
PHASES = list(Phase) if "FOREBAY_MACHINE_SHRINK" in os.environ else [Phase.generate]
NAMES = [f"https://o/set/{number}.tar" for number in range(4)]
LENGTHS = [0, 1, SEGMENT - 1, SEGMENT, SEGMENT + 1, 3 * SEGMENT + 5, 5 * SEGMENT]
BEYOND = 5 * 2**20  # of the capacity: index, reserve, folders, and the step in which the ledger counts them

names = st.sampled_from(NAMES)
PLANNERS = 2
planners = st.integers(0, PLANNERS - 1)
lengths = st.sampled_from(LENGTHS)
shard_hits = st.tuples(st.just("shards"), st.sampled_from(sorted(DAMAGES)))
other_hits = st.tuples(st.just("index"), st.sampled_from(sorted(DAMAGES))) | st.tuples(st.just("."), st.sampled_from(FILE_DAMAGES))
mostly = st.sampled_from([True, True, True, False])
chances = st.integers(0, 2**16).map(random.Random)


class Life:
    """One process's life: a world in a task of its own, so that rules may enter and leave it."""

    def __init__(self, path: Path, origin: FakeOrigin, segments: int, boot: str) -> None:
        self.world: World
        self._ready, self._stop = asyncio.Event(), asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._run(path, origin, segments, boot))

    async def _run(self, path: Path, origin: FakeOrigin, segments: int, boot: str) -> None:
        capacity = segments * SEGMENT + BEYOND
        async with building(path, capacity_bytes=capacity, origin=origin, boot=boot, measured=True, prefetch=True) as world:
            self.world = world
            world.group.create_task(world.store.sweeping.run())  # while it serves, as the service has it
            self._ready.set()
            await self._stop.wait()
            for plan in world.plans.all():
                world.plans.withdraw(plan.reader)

    async def begun(self) -> None:
        ready = asyncio.ensure_future(self._ready.wait())
        await asyncio.wait([self._task, ready], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if self._task.done():
            await self._task

    async def end(self) -> None:
        self._stop.set()
        await self._task


class CacheMachine(RuleBasedStateMachine):
    """Steps between which everything may die; a read after each of them is judged by the model."""

    instants: Instants
    found: Counter[str]

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="forebay-machine-"))
        self.runner = asyncio.Runner()
        self.origin = FakeOrigin()
        self.versions: dict[str, list[bytes]] = {name: [] for name in NAMES}  # the model: the last one is current
        self.serial = self.lives = self.boot = self.jobs = 0
        self.done: list[str] = []
        self.background: list[asyncio.Task[Any]] = []

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        async def in_time() -> Any:
            async with asyncio.timeout(60):
                return await work

        return self.runner.run(in_time())

    @property
    def world(self) -> World:
        return self.life.world

    @initialize(segments=st.sampled_from([2, 6, 12]), data=st.data())
    def begin(self, segments: int, data: st.DataObject) -> None:
        self.segments = segments
        for name in NAMES:
            self._change(name, data.draw(lengths), ranged=True)
        self.place = self.root / "0"
        self.do(self._start())

    async def _start(self) -> None:
        self.life = Life(self.place, self.origin, self.segments, f"boot-{self.boot}")
        await self.life.begun()

    # What clients do

    @rule(name=names, first=st.sampled_from([0, 0, 1, SEGMENT - 1, 2 * SEGMENT]), count=st.sampled_from([None, None, 1, SEGMENT, 200_000]))
    def read(self, name: str, first: int, count: int | None) -> None:
        """A job of its own reads (a part of) the newest version."""
        self.jobs += 1
        self.origin.remotes[name].release()
        current = self.versions[name][-1]
        first = min(first, max(0, len(current) - 1))
        last = None if count is None or not current else min(len(current), first + count) - 1
        got = self.do(self.world.get(name, reader(job=f"job {self.jobs}"), first, last))
        assert got == current[first : None if last is None else last + 1], self._wrong(name, got, current[first:])

    @rule(name=names)
    def read_in_an_old_job(self, name: str) -> None:
        """What it was told once may still be served to it: some version, whole."""
        self.origin.remotes[name].release()
        self.do(self._some_version(name, reader(job="old")))

    @rule(name=names, held=st.sampled_from([0, 5000, SEGMENT + 7]))
    def begin_to_read(self, name: str, held: int) -> None:
        """A reader comes in whose origin gives some bytes and then none until the next kill, or the end."""
        self.origin.remotes[name].release()  # nobody waits for ever at a gate that another one replaced
        if len(self.versions[name][-1]) > held:
            self.origin.remotes[name].hold(held)

        async def come() -> None:
            self.background.append(asyncio.get_running_loop().create_task(self._follow(name)))
            for _ in range(20):
                await asyncio.sleep(0)

        self.do(come())

    async def _follow(self, name: str) -> None:
        await self._some_version(name, reader(job="old"))

    @rule(shards=st.lists(names, min_size=1, max_size=3, unique=True))
    def warm(self, shards: list[str]) -> None:
        self._let_go()

        async def work() -> None:
            async for _ in self.world.operations.warm([shard_of(name) for name in shards]):
                pass

        self.do(work())

    @rule(name=st.none() | names)
    def evict(self, name: str | None) -> None:
        self.do(self.world.operations.evict(None if name is None else [name]))

    @rule(seconds=st.sampled_from([11, 700]))
    def time_passes(self, seconds: int) -> None:
        self.world.clock.advance(seconds)

    # What readers announce

    @rule(who=planners, shards=st.lists(names, max_size=8), more=st.booleans(), epoch=st.none() | st.integers(0, 2))
    def announce(self, who: int, shards: list[str], more: bool, epoch: int | None) -> None:
        """A plan, or more of it; a shard may stand in it more than once."""
        tell = self.world.plans.append if more else self.world.plans.replace
        tell(reader(who, "planned"), [shard_of(name) for name in shards], epoch)
        self.do(self._ahead())

    @rule(who=planners, skipped=st.sampled_from([0, 0, 0, 1, 2]), order=st.permutations(NAMES))
    def go_on(self, who: int, skipped: int, order: list[str]) -> None:
        """The next shard of its plan is read, or one further on; at its end the next epoch is announced."""
        plan = self.world.plans.get(reader(who, "planned"))
        if plan is not None and plan.position + skipped < len(plan):
            self._read_as_planned(who, self.world.plans.shard_at(plan, plan.position + skipped).name)
        else:
            self.announce(who, order, more=False, epoch=None)

    @rule(who=planners, name=names)
    def depart(self, who: int, name: str) -> None:
        """A shard is read that may be anywhere in its plan, behind it, or nowhere."""
        self._read_as_planned(who, name)

    def _read_as_planned(self, who: int, name: str) -> None:
        self.origin.remotes[name].release()
        self.do(self._some_version(name, reader(who, "planned")))

    async def _some_version(self, name: str, who: ReaderName) -> None:
        """Whole; where part of an old one has left, and the origin has it no more, that is told, and who asks again gets the newest."""
        try:
            got = await self.world.get(name, who)
        except ShardChanged:
            assert len(self.versions[name]) > 1
            got = await self.world.get(name, who)
            assert got == self.versions[name][-1], self._wrong(name, got, self.versions[name][-1])
        assert got in self.versions[name], self._wrong(name, got, self.versions[name][-1])

    @rule(who=planners)
    def withdraw(self, who: int) -> None:
        self.world.plans.withdraw(reader(who, "planned"))

    @rule()
    def silence(self) -> None:
        """Nobody with a plan is heard for longer than a plan lasts."""
        self.world.clock.advance(SILENCE_S + 1)
        self.world.plans.expire(self.world.cache.readers.is_reading)
        self.world.prefetcher.look_again()

    @rule(name=st.none() | names, last=st.booleans())
    def look_ahead(self, name: str | None, last: bool) -> None:
        """Prefetch gets as far as it can, also after a stored segment was found wrong; then nothing it has passed by is missing."""
        self._let_go()
        self.do(self._settled())
        entry = None if name is None else self.world.resolver.versions.current.get(name)
        if entry is not None and (stored := list(entry.segments.stored())):
            self.do(self.world.reclaimer.discard(entry, stored[-last]))
            self.do(self._settled())
        assert not list(self._passed_by())

    async def _ahead(self) -> None:
        """Some rounds of prefetch: what follows meets it at work."""
        self.world.prefetcher.wake()
        await asyncio.sleep(0.002)

    async def _settled(self) -> None:
        await self._ended()
        for _ in range(3):
            self.world.prefetcher.look_again()
            await asyncio.sleep(0.002)
            await self.world.quiet()

    def _passed_by(self) -> Iterator[tuple[int, str, int]]:
        """(plan index, name, segment) of what is neither here nor in the air, though a cursor is beyond it."""
        ahead, view = self.world.prefetcher.scheduler, self.world.prefetcher._view
        for cursors in ahead.readers.all():
            for index in range(cursors.plan.position, cursors.front):
                shard = self.world.plans.shard_at(cursors.plan, index)
                lane = cursors.lane(shard.origin)
                if shard.name in ahead._pending.failed or index in lane.indices[1:]:
                    continue
                length = view.length(shard.name)
                cursor = lane.segment if index in lane.indices else 1 if length is None else LAYOUT.count(length)
                for segment in range(cursor):
                    if length is None or not view.has(shard.name, segment):
                        yield index, shard.name, segment

    # What the origin does

    @rule(name=names, length=lengths, ranged=st.booleans())
    def change(self, name: str, length: int, ranged: bool) -> None:
        self._let_go()
        self.do(self._ended())  # a body in the air ends before its shard changes: what a change in mid-body does is told elsewhere
        self.do(self.world.quiet())  # those that nobody reads yet, too
        self._change(name, length, ranged=ranged)

    def _change(self, name: str, length: int, *, ranged: bool) -> None:
        self.serial += 1
        data = data_of(length, self.serial)
        self.versions[name].append(data)
        self.origin.put(name, data, etag=f'"v{self.serial}"', ranged=ranged)

    # What befalls the process and its disk

    @rule()
    def restart(self) -> None:
        """A clean end."""
        self.done.append("restart")
        self.do(self._over())
        self.do(self._start())

    @rule(hit=st.none() | other_hits, chance=chances, committed=mostly)
    def kill(self, hit: tuple[str, str] | None, chance: random.Random, committed: bool) -> None:
        """kill -9 at this instant, perhaps with damage to index, lock or key; the next life begins under the same boot."""
        self._die(committed, lambda place: damage(place / hit[0], hit[1], chance) if hit else "")

    @rule(how=st.sampled_from(SAME_BOOT_DAMAGES), chance=chances, committed=mostly)
    def kill_and_touch(self, how: str, chance: random.Random, committed: bool) -> None:
        """kill -9, and somebody does to a shard file what is noticed under the same boot."""
        self._die(committed, lambda place: damage(place / "shards", how, chance))

    @rule(hits=st.lists(shard_hits | shard_hits | other_hits, max_size=5), chance=chances, committed=mostly)
    def cut_power(self, hits: list[tuple[str, str]], chance: random.Random, committed: bool) -> None:
        """Another boot, after anything happened to any file."""
        self.boot += 1
        self._die(committed, lambda place: ", ".join(damage(place / folder, how, chance) for folder, how in hits))

    def _die(self, committed: bool, meanwhile: Any) -> None:
        """``committed``: not within the tenth of a second in which a change waits for others to be committed with."""
        self.lives += 1
        if committed:
            with suppress(DiskFailed):  # a damaged index is begun anew at its first commit, which is told
                self.do(self.world.store.index_writer.committed())
        copy = self.instants.copy(self.place, self.root / str(self.lives))
        self.done.append(f"boot {self.boot}: {meanwhile(copy)}")
        self.do(self._over())
        shutil.rmtree(self.place)
        self.place = copy
        self.do(self._start())
        kept = sum(entry.segments.stored_count for entry in self.world.room.entries.values())
        self.found["trusted" if not any(entry.segments.unverified for entry in self.world.room.entries.values()) else "doubted"] += kept
        self.do(self._read_all())

    async def _read_all(self) -> None:
        """What was kept is read before it leaves for something else."""
        for name in NAMES:
            got = await self.world.get(name, reader(job="after"))
            assert got == self.versions[name][-1], self._wrong(name, got, self.versions[name][-1])

    def _let_go(self) -> None:
        self.origin.release()

    async def _ended(self) -> None:
        background, self.background = self.background, []
        await asyncio.gather(*background)

    async def _over(self) -> None:
        """The end of a life, clean or not: the other copy is looked at; nothing may be left behind in this process."""
        self._let_go()
        await self._ended()
        await self.life.end()

    # What must hold after every step

    @invariant()
    @precondition(lambda self: hasattr(self, "life"))
    def inside_the_bound(self) -> None:
        """By the books, and by what the disk says, garbage included; what is ahead and unread takes half, and two segments a reader."""
        ledger = self.world.ledger
        most_unread = ledger.capacity_bytes // 2 + PLANNERS * FEW * SEGMENT
        assert self.world.room.read_ahead.unread_bytes <= most_unread, self.world.room.read_ahead
        assert ledger.used_bytes <= ledger.capacity_bytes, ledger
        held = self.instants.held_bytes(self.place)
        assert held <= ledger.capacity_bytes, (held, ledger)

    def _wrong(self, name: str, got: bytes, wanted: bytes) -> str:
        at = next((at for at, (one, other) in enumerate(zip(got, wanted, strict=False)) if one != other), min(len(got), len(wanted)))
        return f"{name}: {len(got)} bytes for {len(wanted)}, the first wrong one is {at}; lives: {self.done}"

    def teardown(self) -> None:
        try:
            if hasattr(self, "life"):
                self.do(self._over())
        finally:
            self.runner.close()
            shutil.rmtree(self.root)


@pytest.mark.timeout(600)
def test_the_cache_against_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads, changes, evictions, restarts, kills, power cuts and damage in any order."""
    CacheMachine.instants, CacheMachine.found = Instants(monkeypatch), Counter()
    for _ in range(3):  # kills that leave nothing behind say little, and chance may choose no others
        run_state_machine_as_test(
            CacheMachine,
            settings=settings(
                max_examples=RUNS, stateful_step_count=STEPS, phases=PHASES, suppress_health_check=list(HealthCheck), print_blob=True
            ),
        )  # fmt: skip
        if min(CacheMachine.found["trusted"], CacheMachine.found["doubted"]) > 0:
            break
    print(f"segments found at starts: {dict(CacheMachine.found)}")
    assert min(CacheMachine.found["trusted"], CacheMachine.found["doubted"]) > 0
