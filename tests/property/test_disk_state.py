"""Whatever a disk does: nobody is promised what is not there."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.house import FakeClock

from forebay_proxy.core.errors import CacheFull
from forebay_proxy.policy.eviction.headroom import CEILING_S, MARGIN_BYTES, Headroom
from forebay_proxy.policy.eviction.ledger import Grant, Ledger, Victim, chosen

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
                headroom.looked(TOTAL - others - held, held)
                assert headroom.capacity_bytes <= max(0, TOTAL - others - floor)
            case ("refused",):
                headroom.refused(held)
                assert headroom.capacity_bytes <= max(0, held - MARGIN_BYTES)
            case ("time", int(seconds)):
                clock.advance(seconds)
        assert 0 <= headroom.capacity_bytes <= configured
        held = min(headroom.capacity_bytes, TOTAL)
    clock.advance(CEILING_S)
    headroom.looked(TOTAL, 0)
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
                ledger.allocated(allocated[-1])
            case ("land",) if allocated:
                grant = allocated.pop()
                stored.append(grant.bytes)
                ledger.commit(grant)
            case ("give up",) if reserved:
                ledger.release(reserved.pop())
            case ("others", int(count)):
                others = min(count, total - on_disk())
                ledger.watch()
                headroom.looked(total - others - on_disk(), ledger.least_bytes)
                ledger.capacity_bytes = headroom.capacity_bytes
            case ("work off",):
                excess = ledger.excess_bytes()
                for victim in chosen(excess, lambda: [Victim(index, size) for index, size in enumerate(stored)]) if excess else ():
                    stored.remove(victim.bytes)
                    ledger.doom(victim.bytes)
                    ledger.gone(victim.bytes)
        assert ledger.held_bytes == on_disk()
        assert ledger.used_bytes == on_disk() + sum(grant.bytes for grant in reserved)
        assert ledger.used_bytes <= 80


steps = st.sampled_from(["reserve", "allocate", "told", "land", "free", "told freed", "give up", "look", "looked"])


@given(st.lists(st.tuples(steps, st.integers(1, 9)), max_size=120))
def test_no_room_is_made_up_while_nobody_else_writes(sequence: list[tuple[str, int]]) -> None:
    """Whenever the disk is counted, and however late the books hear of what it gave and took."""
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
            on_disk += allocating[-1].bytes
        elif what == "told" and allocating:
            allocated.append(allocating.pop())
            ledger.allocated(allocated[-1])
        elif what == "land" and allocated:
            stored.append(allocated[-1].bytes)
            ledger.commit(allocated.pop())
        elif what == "free" and stored:
            doomed.append(stored.pop())
            ledger.doom(doomed[-1])
            if size > 4:  # else it is freed later
                on_disk -= doomed[-1]
                freed.append(doomed.pop())
        elif what == "told freed" and freed:
            ledger.gone(freed.pop())
        elif what == "give up" and allocated:
            ledger.freeing(allocated[-1])
            on_disk -= allocated[-1].bytes
            ledger.release(allocated.pop())
        elif what == "look":
            ledger.watch()
            free = total - on_disk
        elif what == "looked" and free is not None:
            headroom.looked(free, ledger.least_bytes)
            free = None
            assert headroom.capacity_bytes <= total - floor
        assert on_disk <= total - floor
