"""Whatever a disk does: its state is one of three by the rules, it always comes back, and nobody is promised what is not there."""

from __future__ import annotations

import logging
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from support.house import FakeClock

from forebay_proxy.core.errors import CacheFull, DiskFailed
from forebay_proxy.core.events import Event, Events
from forebay_proxy.core.facts.cache import DiskChanged, DiskOperationFailed
from forebay_proxy.policy.eviction.headroom import LAST_WAIT_S, MARGIN_BYTES, Headroom
from forebay_proxy.policy.eviction.ledger import Grant, Ledger, Victim, chosen
from forebay_proxy.store.health import CALM_S, LAST_PROBE_S, DiskHealth

ERRNOS = ["EIO", "ENOSPC", "EDQUOT", "EROFS", "ENOENT", "ENODATA", "ETIMEDOUT", "EACCES", "EBADF"]
OPERATIONS = ["write", "allocate", "read", "create", "punch", "index commit", "look"]
failures = st.tuples(st.just("failed"), st.sampled_from(OPERATIONS), st.sampled_from(ERRNOS))
steps = st.one_of(
    failures,
    st.tuples(st.just("worked")),
    st.tuples(st.just("lost")),
    st.tuples(st.just("probe"), st.booleans()),
    st.tuples(st.just("time"), st.floats(0, 100)),
)
EDGES = {("normal", "unstable"), ("normal", "down"), ("unstable", "normal"), ("unstable", "down"), ("down", "unstable")}


def step(health: DiskHealth, clock: FakeClock, what: tuple[object, ...]) -> None:
    match what:
        case ("failed", str(operation), str(name)):
            health.failed(DiskFailed(operation, name, "told"))
        case ("worked",):
            health.worked()
        case ("lost",):
            health.lost("removed")
        case ("probe", bool(works)):
            if health.probe_due:
                health.probe_begun()
                health.probed(None if works else DiskFailed("probe", "EIO", "told"))
        case ("time", float(seconds)):
            clock.advance(seconds)
            health.calm_down()


@given(st.lists(steps, max_size=60))
def test_the_states_change_by_the_rules_and_end_in_normal(sequence: list[tuple[object, ...]]) -> None:
    """Each change is an edge of the machine, told once and logged once; a mended disk is normal within two minutes, a lost one never."""
    clock, board, facts, lines = FakeClock(), Events(), list[Event](), list[logging.LogRecord]()
    board.listen(facts.append)
    health = DiskHealth(clock, board)
    handler = logging.Handler()
    handler.emit = lines.append  # type: ignore[method-assign]
    log = logging.getLogger("forebay")
    log.addHandler(handler)
    try:
        for what in sequence:
            step(health, clock, what)
            assert health.usable == (health.state != "down")
            assert (health.reason == "") == (health.state == "normal")
            assert health.readable or health.state == "down"
        asked_since = clock()
        is_lost = ("lost",) in sequence
        while health.state != ("down" if is_lost else "normal"):
            assert clock() - asked_since <= LAST_PROBE_S + CALM_S + 5
            step(health, clock, ("time", 1.0))
            step(health, clock, ("probe", True))
    finally:
        log.removeHandler(handler)
    states = ["normal", *(fact.state for fact in facts if isinstance(fact, DiskChanged))]
    assert all(edge in EDGES for edge in pairwise(states))
    assert len(lines) - len(states) + 1 in (0, int(is_lost)), "a lost directory is told once, also while it is down"
    assert health.state == ("down" if is_lost else "normal")
    told = sum(isinstance(fact, DiskOperationFailed) for fact in facts)
    assert told >= sum(what[0] == "failed" for what in sequence)


MIB = 2**20
TOTAL = 400 * MIB
looks = st.one_of(
    st.tuples(st.just("look"), st.integers(0, TOTAL)),  # how much others hold then
    st.tuples(st.just("refused")),
    st.tuples(st.just("time"), st.integers(1, 700)),
)


@given(st.lists(looks, max_size=40), st.integers(0, TOTAL), st.integers(0, 50 * MIB))
def test_the_headroom_never_exceeds_what_is_there(sequence: list[tuple[object, ...]], configured: int, floor: int) -> None:
    """Between nothing and what was asked for, the floor kept as last seen, below a refusal until it is lifted; and it comes back."""
    clock = FakeClock()
    headroom = Headroom(configured, floor, min(configured, TOTAL - floor), clock)
    held = 0
    for what in sequence:
        match what:
            case ("look", int(others)):
                held = min(held, TOTAL - others)
                headroom.looked(TOTAL - others - held, held, held)
                assert headroom.capacity_bytes <= max(0, TOTAL - others - floor)
            case ("refused",):
                headroom.refused(held)
                assert headroom.capacity_bytes <= max(0, held - MARGIN_BYTES)
            case ("time", int(seconds)):
                clock.advance(seconds)
        assert 0 <= headroom.capacity_bytes <= configured
        held = min(headroom.capacity_bytes, TOTAL)
    clock.advance(LAST_WAIT_S)
    headroom.looked(TOTAL, 0, 0)
    assert headroom.capacity_bytes == max(0, min(configured, TOTAL - floor))


moves = st.one_of(
    st.tuples(st.just("reserve"), st.integers(1, 9)),
    st.tuples(st.just("allocate")),
    st.tuples(st.just("land")),
    st.tuples(st.just("give up")),
    st.tuples(st.just("others"), st.integers(0, 100)),
    st.tuples(st.just("work off")),
)


@given(st.lists(moves, max_size=80))
def test_what_is_granted_fits_on_the_disk_as_last_seen(sequence: list[tuple[object, ...]]) -> None:
    """Others come and go; a grant is only given when all that was promised fits beside them, with the floor free."""
    total, floor, others = 100, 5, 0
    ledger: Ledger[int] = Ledger(80)
    headroom = Headroom(80, floor, 80, FakeClock())
    stored, reserved, allocated = list[int](), list[Grant[int]](), list[Grant[int]]()

    def on_disk() -> int:
        return sum(stored) + sum(grant.bytes for grant in allocated)

    for what in sequence:
        match what:
            case ("reserve", int(size)):
                before = ledger.used_bytes
                try:
                    grant = ledger.reserve(size, lambda: [Victim(index, size) for index, size in enumerate(stored)])
                except CacheFull:
                    continue
                for victim in grant.victims:
                    stored.remove(victim.bytes)
                ledger.vacated(grant)
                reserved.append(grant)
                assert ledger.used_bytes <= ledger.capacity_bytes, "nothing is granted above the capacity"
                assert ledger.used_bytes <= max(before, total - floor)
            case ("allocate",) if reserved:
                allocated.append(reserved.pop())
                ledger.disk.allocated(allocated[-1])
            case ("land",) if allocated:
                grant = allocated.pop()
                stored.append(grant.bytes)
                ledger.commit(grant)
            case ("give up",) if reserved:
                ledger.release(reserved.pop())
            case ("others", int(count)):
                others = min(count, total - on_disk())
                ledger.disk.watch()
                headroom.looked(total - others - on_disk(), *ledger.disk.watched())
                ledger.capacity_bytes = headroom.capacity_bytes
            case ("work off",):
                excess = ledger.excess_bytes()
                for victim in chosen(excess, lambda: [Victim(index, size) for index, size in enumerate(stored)]) if excess else ():
                    stored.remove(victim.bytes)
                    ledger.doom(victim.bytes)
                    ledger.gone(victim.bytes)
        assert ledger.disk.bytes == on_disk()
        assert ledger.used_bytes == on_disk() + sum(grant.bytes for grant in reserved)
        assert ledger.used_bytes <= 80


steps = st.sampled_from(["reserve", "allocate", "told", "land", "cut", "free", "told freed", "give up", "look", "looked"])


@given(st.lists(st.tuples(steps, st.integers(1, 9)), max_size=120))
def test_the_bound_stays_where_it_is_while_nobody_else_writes(sequence: list[tuple[str, int]]) -> None:
    """Whenever the disk is counted, and however late the books hear of what it gave and took: no byte of room is made up, none is lost."""
    total, floor = 100, 7
    ledger: Ledger[int] = Ledger(10**6)
    ledger.capacity_bytes = total - floor
    headroom = Headroom(10**6, floor, total - floor, FakeClock())
    on_disk, free = 0, None  # what the disk holds; what it said of that at the last look
    reserved, allocating, allocated, doomed, freed = list[Grant[int]](), list[Grant[int]](), list[Grant[int]](), list[int](), list[int]()
    stored = list[int]()
    for what, size in sequence:
        if what == "reserve" and ledger.free_bytes >= size:
            reserved.append(ledger.reserve(size, list))
        elif what == "allocate" and reserved:
            allocating.append(reserved.pop())
            ledger.disk.doubt(allocating[-1])
            on_disk += allocating[-1].bytes
        elif what == "told" and allocating:
            allocated.append(allocating.pop())
            ledger.disk.allocated(allocated[-1])
        elif what == "land" and allocated:
            stored.append(allocated[-1].bytes)
            ledger.commit(allocated.pop())
        elif what == "cut" and allocated:
            grant = allocated.pop(0)
            ledger.disk.doubt(grant)
            on_disk -= max(0, grant.bytes - size)
            if free is None:
                ledger.disk.watch()  # a look may begin in between
            ledger.shrink(grant, size)
            stored.append(grant.bytes)
            ledger.commit(grant)
        elif what == "free" and stored:
            doomed.append(stored.pop())
            ledger.doom(doomed[-1])
            if size > 4:  # else it is freed later
                on_disk -= doomed[-1]
                freed.append(doomed.pop())
        elif what == "told freed" and freed:
            ledger.gone(freed.pop())
        elif what == "give up" and allocated:
            ledger.disk.doubt(allocated[-1])
            on_disk -= allocated[-1].bytes
            ledger.release(allocated.pop())
        elif what == "look":
            ledger.disk.watch()
            free = total - on_disk
        elif what == "looked" and free is not None:
            headroom.looked(free, *ledger.disk.watched())
            free = None
            assert headroom.capacity_bytes == total - floor
        least, most = ledger.disk.watched()
        assert on_disk <= total - floor
        assert least <= most
