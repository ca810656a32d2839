"""What the observer books: by what it finds at the end of a step, and exactly where a moment is known."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from forebay_loader.base.activity import DISK, ORIGIN, UNTOLD, Activity
from forebay_loader.meter.observer import MADE, UNTOLD_S, Observer, frame_of
from forebay_loader.meter.page import PAGE_BYTES, MeterPage, PageWriter

MS = 1_000_000


def frame_in(place: str, name: str = "stage") -> FrameType:
    """A frame of a function that lies in ``place``."""
    found: dict[str, FrameType] = {}
    made = compile(f"import sys\ndef {name}():\n    return sys._getframe()\nframe = {name}()", f"/site{place}", "exec")
    exec(made, found)
    return found["frame"]


DECODING, MAPPING = frame_in("/webdataset/autodecode.py"), frame_in("/webdataset/filters.py", "_map")
COLLATING = frame_in("/torch/utils/data/_utils/collate.py")
IDLE = frame_in("/torch/utils/data/_utils/worker.py")
STREAMING = frame_in("/forebay_loader/stream/shard_stream.py")


class Watched:
    """An observer without its thread, and the page it writes."""

    def __init__(self) -> None:
        self.page = MeterPage(bytearray(PAGE_BYTES))
        self.activity = Activity()
        self.observer = Observer(PageWriter(self.page, pid=1, start_time=1, worker=0, now_ns=0), lambda: None, now_ns=0)

    def look(self, frame: FrameType | None, now_ms: float) -> None:
        self.observer.look(frame, self.activity, int(now_ms * MS))
        self.observer.book(frame, self.activity, int(now_ms * MS))

    def spent(self) -> dict[str, float]:
        found: dict[str, float] = {}
        for begins_ns, ends_ns, cause in self.page.spans(0, self.page.word("settled_ns")):
            found[cause] = found.get(cause, 0) + (ends_ns - begins_ns) / MS
        return found


@pytest.fixture
def watched() -> Iterator[Watched]:
    MADE.renew()
    made = Watched()
    yield made
    MADE.renew()


STEPS: dict[str, tuple[list[Any], dict[str, float]]] = {  # looks at a frame after so many ms, and ms at which a batch was made
    # A decoder that kept the interpreter's lock gets all of its time, however late the look.
    "what is found at its end": ([(MAPPING, 20), (DECODING, 320)], {"map": 20, "decode": 300}),
    "without a wait its reading": ([(STREAMING, 20)], {"read": 20}),
    "a batch divides a step": ([(DECODING, 20), 26, (MAPPING, 40)], {"decode": 26, "map": 14}),
    # The look before found the end of another batch: until this one was made nobody was idle.
    "until a batch was made": ([(DECODING, 20), 22, (IDLE, 24), 90, (IDLE, 100)], {"decode": 22 + 66, "transfer": 2 + 10}),
    "a frame of nobody's": ([(frame_in("/train.py"), 20), (None, 40)], {"other": 40}),
}


@pytest.mark.parametrize("name", STEPS)
def test_what_a_step_is_booked_as(watched: Watched, name: str) -> None:
    """By what is found at its end, and exactly where a batch was made in it."""
    steps, spent = STEPS[name]
    for step in steps:
        if isinstance(step, int):
            MADE.unseen.append(step * MS)
        else:
            watched.look(*step)
    assert watched.spent() == spent


def test_a_wait_is_booked_from_its_begin(watched: Watched) -> None:
    watched.look(DECODING, 20)
    watched.activity.wait(ORIGIN, "a.tar", 0)
    watched.activity.since_ns = 32 * MS
    watched.look(STREAMING, 40)
    assert watched.spent() == {"decode": 32, "origin": 8}
    assert watched.page.view().shard == "a.tar"


@pytest.mark.parametrize(
    ("frame", "due_ms", "cause"),
    [(STREAMING, 95, "decode"), (STREAMING, 100.02, "read"), (COLLATING, 95, "decode"), (COLLATING, 98, "collate")],
)
def test_what_lets_go_of_the_lock_is_not_what_kept_it(watched: Watched, frame: FrameType, due_ms: float, cause: str) -> None:
    """A late look meets the first copy, or collation, that lets go: one that began after the look was due did not keep it."""
    watched.look(DECODING, 20)
    watched.activity.wait(DISK, "a.tar", 0)
    watched.activity.since_ns, MADE.begun_ns = 100 * MS, 97 * MS
    watched.observer.look(frame, watched.activity, int(100.03 * MS), int(due_ms * MS))
    watched.observer.book(frame, watched.activity, int(100.03 * MS))
    assert next(reversed(watched.spent())) == cause


def test_an_opening_is_booked_when_it_is_told_whose_it_was(watched: Watched) -> None:
    """Nothing behind it is booked before."""
    watched.activity.wait(UNTOLD, "a.tar", 0)
    watched.activity.since_ns = 0
    watched.look(STREAMING, 20)
    watched.activity.over()
    watched.look(MAPPING, 40)
    assert (watched.spent(), watched.page.word("settled_ns")) == ({}, 0)
    watched.activity.tell(ORIGIN)
    watched.look(MAPPING, 60)
    assert watched.spent() == {"origin": 20, "map": 40}


def test_an_opening_that_nobody_tells_of_is_the_origins_in_the_end(watched: Watched) -> None:
    """The sidecar turns, as far as is known: a stall of minutes must not be of no cause."""
    watched.activity.wait(UNTOLD, "a.tar", 0)
    watched.activity.since_ns = 0
    watched.look(STREAMING, 20)
    watched.look(STREAMING, 30 + 1000 * UNTOLD_S)
    assert watched.spent() == {"origin": 20}


def test_the_stack_is_told_when_nothing_moves(watched: Watched) -> None:
    """And no longer than that."""
    watched.look(DECODING, 20)
    watched.look(DECODING, 11_000)
    assert "/webdataset/autodecode.py" in watched.page.view().stack
    MADE.add()
    watched.look(DECODING, 11_020)
    assert watched.page.view().stack == ""


FINALISERS_THAT_START_THREADS = """
import gc, threading
from forebay_loader.meter.observer import frame_of

class Ended:
    def __init__(self):
        self.me = self

    def __del__(self):
        threading.Thread(target=int).start()

gc.set_threshold(1)
for _ in range(300):
    Ended()
    assert frame_of(threading.get_ident()) is not None
"""


@pytest.mark.each_python
def test_a_look_amid_which_a_finaliser_starts_a_thread() -> None:
    """As that of torchdata's loader does: it would wait for ever for a lock that the look holds (python/cpython#106883)."""
    subprocess.run([sys.executable, "-c", FINALISERS_THAT_START_THREADS], check=True, timeout=120)


@pytest.mark.parametrize("enabled", [True, False])
def test_a_look_leaves_the_collector_as_it_was(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    try:
        frame_of(threading.get_ident())
        assert gc.isenabled() is enabled
    finally:
        gc.enable()
