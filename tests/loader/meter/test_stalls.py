"""The meter in torch's own loaders: what is timed, whom it blames, and that nothing else changes."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import forebay_loader as fb
from forebay_loader.base.counters import COUNTS
from forebay_loader.meter.clock.stall_clock import CLOCK
from forebay_loader.meter.process_page import process_page
from forebay_loader.meter.report.meter_thread import THREAD
from forebay_loader.meter.stalls import install, loader_totals, remove
from forebay_loader.meter.totals import StallTotals

STOPPED = "the meter has stopped, training goes on: ZeroDivisionError: of the meter"
torch_data = pytest.importorskip("torch.utils.data")
dataloader = pytest.importorskip("torch.utils.data.dataloader")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("metered")]


class Numbers(torch_data.Dataset):  # type: ignore[misc, name-defined]
    """Map-style; each sample takes a while."""

    def __init__(self, count: int, sample_s: float = 0.0) -> None:
        self.count, self.sample_s = count, sample_s

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> int:
        time.sleep(self.sample_s)
        return number


class Stream(torch_data.IterableDataset):  # type: ignore[misc, name-defined]
    """The same, iterable; every worker has all of it."""

    def __init__(self, count: int, sample_s: float = 0.0) -> None:
        self.numbers = Numbers(count, sample_s)

    def __iter__(self) -> Iterator[int]:
        return map(self.numbers.__getitem__, range(self.numbers.count))


def loader(data: Any, **how: Any) -> Any:
    return torch_data.DataLoader(data, **{"batch_size": 4, "num_workers": 1, **how})


def settled(fact: Callable[[StallTotals], bool]) -> StallTotals:
    """The totals once that holds: a worker's page tells a step later."""
    until_s = time.monotonic() + 30
    while not fact(found := fb.stalls()) and time.monotonic() < until_s:
        time.sleep(0.01)
    return found


def steady(batches: Iterator[Any], first: int = 2) -> StallTotals:
    """Of what comes after the first batches: until then workers start."""
    for _ in range(first):
        next(batches)
    before = settled(lambda found: not found.pending_s)
    for _ in batches:
        pass
    return settled(lambda found: not found.pending_s).since(before)


def share(found: StallTotals, cause: str) -> float:
    """Of what was waited for batches: the end of the workers takes its time as well."""
    return found.stall_s.get(cause, 0.0) / (found.total_stall_s - found.stall_s.get("start", 0.0))


@pytest.mark.parametrize("data", [Numbers, Stream])
def test_a_slow_data_set_is_blamed(data: Any) -> None:
    """Whether map-style or iterable: it is the user's own stage."""
    found = steady(iter(loader(data(40, 0.01))))
    assert found.steps == 8
    assert found.samples == 32
    assert share(found, "map") > 0.5
    assert found.slowest_worker == 0


def test_a_worker_that_is_started_is_handed_its_page() -> None:
    """One that is forked inherits it."""
    found = steady(iter(loader(Numbers(40, 0.01), multiprocessing_context="spawn")))
    assert share(found, "map") > 0.5
    assert found.slowest_worker == 0


def test_the_pages_of_ended_workers_are_let_go() -> None:
    """Each pass has workers of its own, and a process some hundred descriptors. A stall that is not booked yet holds its own."""
    made = loader(Numbers(4))
    for _ in range(5):
        list(made)
    settled(lambda found: not found.pending_s)
    gc.collect()
    held = [os.readlink(one.path) for one in os.scandir("/proc/self/fd") if os.path.lexists(one.path)]
    assert sum("forebay-meter" in name for name in held) <= 2  # of the last pass, and of the one before it


class Skipping(Stream):
    """Skips one sample in each worker."""

    def __iter__(self) -> Iterator[int]:
        COUNTS.add("skipped_map")
        return super().__iter__()


def test_workers_that_ended_before_anybody_asked_are_counted() -> None:
    """Each pass has a loader and workers of its own, which are gone when the next one begins."""
    for _ in range(3):
        list(loader(Skipping(4), num_workers=2))
    gc.collect()
    assert fb.stalls().skipped == 6


def test_the_whole_of_it_is_what_next_took() -> None:
    """To the millisecond a step, whoever is to blame."""
    batches, took_s = iter(loader(Numbers(40, 0.005))), 0.0
    before = fb.stalls()
    while True:
        began_s = time.perf_counter()
        batch = next(batches, None)
        took_s += time.perf_counter() - began_s
        if batch is None:
            break
        time.sleep(0.002)
    found = fb.stalls().since(before)
    assert found.total_stall_s == pytest.approx(took_s, abs=0.02, rel=0.02)


def test_without_workers_its_own_page_tells() -> None:
    """The process that makes its batches itself is looked at while it does."""
    found = steady(iter(loader(Numbers(60, 0.01), num_workers=0)))
    assert share(found, "map") > 0.5
    assert found.slowest_worker == -1


def test_workers_out_of_order() -> None:
    """The one that gave the batch is blamed."""
    found = steady(iter(loader(Numbers(40, 0.01), num_workers=2, in_order=False)))
    assert share(found, "map") > 0.5


def test_a_pass_begun_again_by_the_same_workers() -> None:
    """Batches have the numbers of the first pass again, which was left in the middle."""
    kept = loader(Numbers(48, 0.01), persistent_workers=True)
    for number, _ in enumerate(kept):
        if number == 3:
            break
    found = steady(iter(kept), first=1)
    assert found.steps == 11
    assert share(found, "map") > 0.5


def test_each_loader_has_its_own() -> None:
    """Training and validation side by side; the process has both."""
    training, validation = loader(Numbers(16, 0.005)), loader(Numbers(8))
    for _ in zip(training, validation, strict=False):
        pass
    found, other, both = loader_totals(training), loader_totals(validation), fb.stalls()
    assert (found.steps, other.steps, both.steps) == (3, 2, 5)
    assert both.wall_s < found.wall_s + other.wall_s


@pytest.mark.parametrize("workers", [0, 1])
def test_threads_that_wait_side_by_side_are_booked_once(workers: int) -> None:
    """For the process no more than the time that passed, asked in between or not; each loader has its own wait whole."""
    made = [loader(Numbers(16, 0.02), num_workers=workers) for _ in range(4)]
    threads = [threading.Thread(target=list, args=(each,)) for each in made]
    for each in threads:
        each.start()
    while any(each.is_alive() for each in threads):
        assert (found := fb.stalls()).total_stall_s <= found.wall_s + 0.001
        time.sleep(0.05)
    found = settled(lambda found: not found.pending_s)
    assert 0.3 < found.total_stall_s <= found.wall_s + 0.001
    assert all(loader_totals(each).total_stall_s > 0.3 for each in made)


def test_where_the_trainer_stands() -> None:
    """Between two batches, after the end, in the next pass; nowhere while it waits, and once it has left the loop."""
    first, second = loader(Numbers(8), num_workers=0), loader(Numbers(4), num_workers=0, persistent_workers=False)
    assert CLOCK.stand() is None
    batches = iter(first)
    next(batches)
    time.sleep(0.02)
    stand = CLOCK.stand()
    assert stand is not None
    assert stand[:4] == (0, 1, 1, False)
    assert stand.for_s >= 0.02
    assert len(list(batches)) == 1
    assert (CLOCK.stand() or ())[:4] == (0, 1, 2, True)
    for _ in second:
        assert (CLOCK.stand() or ())[:4] == (1, 1, 1, False)
    assert (CLOCK.stand() or ())[:4] == (1, 1, 1, True)
    for _ in first:
        assert (CLOCK.stand() or ())[:4] == (0, 2, 3, False)
        break


def test_a_trainer_that_waits_for_a_batch_stands_nowhere() -> None:
    """Whatever loader had been asked before."""
    list(loader(Numbers(4), num_workers=0))
    waiting = threading.Thread(target=list, args=(loader(Numbers(4, 0.1), num_workers=0),))
    waiting.start()
    time.sleep(0.1)
    assert CLOCK.stand() is None
    waiting.join()
    assert CLOCK.stand() is not None


def test_the_clock_stands_between_two_passes() -> None:
    """An epoch's end is no stall, and no time of a loader's."""
    batches = iter(loader(Numbers(4), num_workers=0))
    assert len(list(batches)) == 1
    before = fb.stalls()
    time.sleep(0.05)
    assert fb.stalls().wall_s == before.wall_s


def left_early(made: Any) -> None:
    for _ in zip(range(2), made, strict=False):
        pass


@pytest.mark.parametrize("asked", [True, False], ids=["somebody asks meanwhile", "nobody asks"])
def test_the_clock_stands_when_a_kept_iterator_is_left(asked: bool) -> None:
    """Persistent workers stay with the loader: its loop was left all the same, and no batch is waited for until the next one."""
    kept = loader(Numbers(48), persistent_workers=True)
    before_s = time.monotonic()
    left_early(kept)
    looped_s = time.monotonic() - before_s
    first = fb.stalls() if asked else None
    time.sleep(0.5)
    if first is not None:
        assert fb.stalls().wall_s == first.wall_s
    before_s = time.monotonic()
    left_early(kept)
    looped_s += time.monotonic() - before_s
    assert loader_totals(kept).wall_s <= looped_s
    held = iter(kept)
    next(held)
    walled_s = fb.stalls().wall_s
    time.sleep(0.2)
    assert fb.stalls().wall_s >= walled_s + 0.2  # a step is under way


def test_what_is_raised_comes_through() -> None:
    """And is timed all the same; the next call is timed anew."""

    def interrupt(samples: list[int]) -> Any:
        if 5 in samples:
            raise KeyboardInterrupt
        return samples

    batches = iter(loader(Numbers(12), num_workers=0, collate_fn=interrupt))
    next(batches)
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert next(batches) == [8, 9, 10, 11]
    with pytest.raises(StopIteration):
        next(batches)
    assert fb.stalls().steps == 2


def test_a_stall_shows_while_it_lasts() -> None:
    """Asked from another thread, and not counted twice afterwards."""
    batches = iter(loader(Numbers(8, 0.1)))
    assert next(batches) is not None
    before = fb.stalls().total_stall_s
    CLOCK.enter(batches)
    time.sleep(0.1)
    during = fb.stalls().total_stall_s - before
    CLOCK.leave(batches, [1])
    after = fb.stalls().total_stall_s - before
    assert during > 0.1
    assert during < after < 1.5 * during


def test_totals_are_of_when_they_are_given() -> None:
    """Not of when they were asked for: wall time that went back would be a meter that began anew, to whoever adds it up."""
    batches = iter(loader(Numbers(8), num_workers=0))
    next(batches)
    found: list[StallTotals] = []
    asking = threading.Thread(target=lambda: found.append(CLOCK.totals()))
    with CLOCK._lock:
        asking.start()
        time.sleep(0.1)
    asking.join()
    assert found[0].wall_s > 0.1


def test_a_killed_worker_leaves_no_riddle() -> None:
    """Torch's own error comes, and the stall is booked."""
    made = loader(Numbers(400, 0.05))
    batches = iter(made)
    next(batches)
    os.kill(batches._workers[0].pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"exited unexpectedly|killed by signal"):
        list(batches)
    found = settled(lambda one: not one.pending_s)
    assert not found.pending_s


def test_a_fault_of_the_meter_is_none_of_the_trainings(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """All batches come; it says that it has stopped, and that alone: no line, no watchdog speaks of a wait that nobody times."""
    stopped: list[bool] = []

    def broken(thread: Callable[[], int | None]) -> None:
        raise ZeroDivisionError("of the meter")

    monkeypatch.setattr(process_page, "begin", broken)
    monkeypatch.setattr(THREAD, "stop", lambda: stopped.append(True))
    assert len(list(loader(Numbers(12), num_workers=0))) == 3
    assert [record.getMessage() for record in caplog.records if "meter" in record.getMessage()] in ([], [STOPPED])
    assert stopped == [True]
    assert CLOCK.waiting() is None


def test_others_may_wrap_it_too() -> None:
    """Before and after; what is removed beneath theirs does nothing any more, and comes back without being counted twice."""
    kind = dataloader._BaseDataLoaderIter
    ours = kind.__next__

    def theirs(self: Any) -> Any:
        return ours(self)

    try:
        kind.__next__ = theirs
        remove()
        assert kind.__next__ is theirs
        list(loader(Numbers(8), num_workers=0))
        assert fb.stalls().steps == 0
        install()
        list(loader(Numbers(8), num_workers=0))
        assert fb.stalls().steps == 2
    finally:
        remove()
        kind.__next__ = ours.__wrapped__  # torch's own: nobody knows of ours any more


def test_removed_it_is_as_it_was() -> None:
    """Torch's own, or what others have made of it before."""
    remove()
    before = methods_of_loaders()
    install()
    assert methods_of_loaders() != before
    remove()
    assert methods_of_loaders() == before


def methods_of_loaders() -> list[Any]:
    kinds = (dataloader._BaseDataLoaderIter, dataloader.DataLoader)
    return [method for kind in kinds for method in (kind.__init__, kind.__iter__, vars(kind).get("__next__"))]


def test_it_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    remove()
    monkeypatch.setenv("FOREBAY_METER", "0")
    install()
    list(loader(Numbers(8)))
    assert str(fb.stalls()) == "no batch was asked for yet"


def test_a_fork_of_a_metered_process_has_no_page() -> None:
    """And no thread: the observer's is its parent's. It ends as it would have."""
    list(loader(Numbers(8), num_workers=0))
    assert process_page.page is not None
    child = os.fork()
    if not child:
        os._exit(int(process_page.page is not None or process_page.is_begun or fb.stalls().steps > 0))
    assert os.waitpid(child, 0)[1] == 0
    assert process_page.page is not None
