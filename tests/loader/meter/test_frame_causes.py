"""What a stack says a thread does: the innermost frame that is known."""

from __future__ import annotations

import gc
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from forebay_loader.meter.frame_causes import _RULES, back_of, cause_of, function_of, uncollected
from forebay_proxy.wire.protocol.meter import CAUSES

PACKAGES = Path(sysconfig.get_paths()["purelib"])


def here() -> FrameType:
    return sys._getframe()


def caused(found: int | None) -> str:
    return CAUSES[found] if found is not None and found >= 0 else str(found)


@pytest.mark.webdataset
def test_a_users_function_is_of_the_stage_that_calls_it() -> None:
    """In webdataset's own pipeline: the data set's, a stage's, the decoder's and the collation's."""
    wds = pytest.importorskip("webdataset")
    seen: list[str] = []

    functions: list[str] = []

    def note(data: Any) -> Any:
        seen.append(caused(cause_of(here())))
        functions.append(function_of(here()).partition(" (")[0])
        return data

    def decoder(key: str, data: bytes) -> Any:
        return note(len(data))

    def collate(samples: list[Any]) -> Any:
        return note(samples)

    def samples() -> Iterator[Any]:
        yield {"__key__": "a", "bin": b"1"}

    def stage(data: Iterable[Any]) -> Iterator[Any]:
        yield from data

    pipeline = wds.DataPipeline(samples, stage, wds.decode(decoder), wds.map(note), wds.batched(1, collation_fn=collate))
    assert len(list(pipeline)) == 1
    assert seen == ["decode", "map", "collate"]
    assert [each.rpartition(".")[2] for each in functions] == ["decoder", "note", "collate"]


@pytest.mark.webdataset
def test_a_librarys_function_is_named_where_the_program_has_none() -> None:
    """As a picture's filter; and nothing where the stage itself is at work."""
    wds = pytest.importorskip("webdataset")
    seen: list[str] = []
    library = compile("def blur(data, note):\n    note()\n    return data", "/x/site-packages/lib/filters.py", "exec")
    names: dict[str, Any] = {}
    exec(library, names)

    def note() -> None:
        frame = sys._getframe(1)
        cause_of(frame)
        seen.extend((function_of(frame), function_of(frame.f_back)))

    assert list(wds.DataPipeline(lambda: iter("a"), wds.map(partial(names["blur"], note=note)))) == ["a"]
    assert seen == ["blur (filters.py:1)", ""]


def test_no_frame_of_a_stage_is_none() -> None:
    assert cause_of(None) is None
    assert cause_of(here()) is None


def test_the_files_of_the_rules_are_there() -> None:
    """As far as the packages are installed; a file that was renamed would be a stage that is not seen."""
    roots = {"forebay_loader": Path(__file__).parents[3] / "loader", **dict.fromkeys(("webdataset", "torch", "PIL"), PACKAGES)}
    older = ("cborsiterators.py",)  # of one webdataset only
    missing = []
    for place, _ in _RULES:
        package = place.split("/")[1] if place.startswith("/") and place.count("/") > 1 else ""
        root = roots.get(package)
        if root is not None and (root / package).exists() and not place.endswith(older):
            missing += [] if (root / place.lstrip("/")).exists() else [place]
    assert missing == []


def test_a_caller_is_found_and_the_collector_stays_on() -> None:
    """Also where the program has turned it off: then that stays."""
    frame = sys._getframe()
    assert not uncollected(gc.isenabled)
    for turn in (gc.enable, gc.disable):
        turn()
        try:
            before = gc.isenabled()
            assert back_of(frame) is frame.f_back
            assert gc.isenabled() is before
        finally:
            gc.enable()


def test_the_collector_is_on_after_a_fault() -> None:
    with pytest.raises(ZeroDivisionError):
        uncollected(lambda: 1 // 0)
    assert gc.isenabled()


def test_no_other_thread_runs_while_nothing_is_collected() -> None:
    """A fork by it would leave a child without a collector."""
    going, looks, off = [True], [0], [0]

    def look() -> None:
        while going:
            looks[0] += 1
            off[0] += not gc.isenabled()

    other, interval = threading.Thread(target=look), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        other.start()
        for _ in range(50_000):
            uncollected(sys._getframe)
    finally:
        sys.setswitchinterval(interval)
        going.clear()
        other.join()
    assert (looks[0] > 0, off[0]) == (True, 0)
