"""Handlers that are asked as before, whose answers are noted."""

from __future__ import annotations

import gc
import json
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from forebay_loader.base.counters import counters
from forebay_loader.base.errors import TooManySkips
from forebay_loader.meter.skips.counts import SkipLimits
from forebay_loader.meter.skips.recorded_handler import Place, RecordedHandler, asked, passes_over
from forebay_loader.meter.skips.skip_pass import SkipPass, SkipScope
from forebay_loader.meter.skips.skip_slots import LoneRow
from forebay_loader.meter.skips.skips_file import SKIPS_FILE

PLACE = Place("decode", "sample", "s3://b/0.tar?X-Amz-Signature=secret", "k-1", "video")


def skips(most: float | None = None, in_a_row: int | None = None) -> SkipPass:
    return SkipPass(SkipLimits(most, in_a_row), SkipScope(3, 1, 2, 0, 1), LoneRow())


def listed() -> list[dict[str, Any]]:
    with open(SKIPS_FILE.path) as file:
        return [json.loads(line) for line in file]


def stage(data: Iterable[dict[str, Any]], handler: Callable[[Exception], bool]) -> Iterator[dict[str, Any]]:
    """As webdataset's ``_map``."""
    for sample in data:
        try:
            if sample["bad"]:
                raise sample.get("error", ValueError)("no", "https://me:secret@h/x.tar?sig=secret")
        except Exception as exn:
            if handler(exn):
                continue
            break
        yield sample


def samples(pattern: str) -> list[dict[str, Any]]:
    return [{"__key__": f"k{n}", "__url__": "s3://b/0.tar", "bad": letter == "x"} for n, letter in enumerate(pattern)]


def test_it_gets_the_very_exception_and_its_answer_counts() -> None:
    """Once, with the arguments it came with; what it says is what the stage hears."""
    error, seen = ValueError("no"), []

    def handler(exn: Exception) -> Any:
        seen.append(exn)
        return "an odd truth"

    assert RecordedHandler(handler, skips()).at(error, PLACE) == "an odd truth"
    assert seen == [error]
    assert error.args == ("no",)


def test_what_it_raises_is_raised_and_nothing_was_skipped() -> None:
    """As ``reraise_exception`` does."""

    def handler(exn: Exception) -> bool:
        raise KeyError("mine") from exn

    with pytest.raises(KeyError, match="mine"):
        RecordedHandler(handler, skips()).at(ValueError("no"), PLACE)
    assert counters()["skipped_decode"] == 0


def test_a_skip_is_listed_with_what_why_and_where() -> None:
    """And who: the whole line, without a secret."""
    list(stage(samples(".x."), RecordedHandler(lambda _: True, skips())))
    (line,) = listed()
    assert line.pop("time")
    assert line == {
        "job": "job-1", "rank": 1, "worker": 0, "epoch": 3, "stage": "map", "what": "sample", "shard": "s3://b/0.tar", "key": "k1",
        "error": "ValueError", "message": "no", "function": "stage", "then": "continue",
    }  # fmt: skip


class Odd:
    """As an array is: neither true nor false."""

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")


def test_a_stage_with_odd_variables_goes_on() -> None:
    """Where a skip was is read from a user's own variables: whatever they hold, the handler's answer counts, and so does the skip."""

    def own(handler: Callable[[Exception], bool]) -> bool:
        sample, url, fname = {"__url__": Odd(), "__key__": Odd()}, Odd(), Odd()
        try:
            raise ValueError("no")
        except ValueError as error:
            return handler(error)
        finally:
            del sample, url, fname

    assert own(RecordedHandler(lambda _: True, skips())) is True
    assert [(line["function"], line["shard"], line["key"]) for line in listed()] == [("own", "", "")]


def test_a_handler_that_stops_is_listed_so() -> None:
    """The rest of the pass is lost with it."""
    assert len(list(stage(samples(".x.."), RecordedHandler(lambda _: False, skips())))) == 1
    assert [line["then"] for line in listed()] == ["stop"]


def test_in_a_row_means_without_a_sample_between() -> None:
    """Of that stage: good ones between begin the row anew."""
    handler = RecordedHandler(lambda _: True, skips(in_a_row=2))
    assert len(list(handler.counting(stage(samples("xx.xx.xx"), handler)))) == 2
    handler = RecordedHandler(lambda _: True, skips(in_a_row=2))
    with pytest.raises(TooManySkips, match="3 skips in a row"):
        list(handler.counting(stage(samples(".xxx."), handler)))


def test_the_limit_is_not_for_handlers() -> None:
    """The error that says it is handed to none, not even one that goes on whatever it gets."""
    asked_about = []
    handler = RecordedHandler(lambda exn: bool(asked_about.append(exn)) or True, skips(0))
    with pytest.raises(TooManySkips, match="max_skipped=0") as raised:
        handler.at(ValueError("no"), PLACE)
    with pytest.raises(TooManySkips):
        handler.at(raised.value, PLACE)
    assert len(asked_about) == 1
    assert isinstance(raised.value.__cause__, ValueError)


def test_a_plain_handler_is_only_asked() -> None:
    """Where nobody records."""
    assert asked(lambda _: False, ValueError("no"), PLACE) is False
    assert counters()["skipped_decode"] == 0


def test_a_bad_sample_is_not_kept() -> None:
    """Neither it nor its exception, while the stage goes on: what was looked at in its frame is forgotten there."""

    class Bad(ValueError):
        pass

    class Kept(dict):  # type: ignore[type-arg]
        pass

    seen: list[weakref.ref[Any]] = []

    def handler(exn: Exception) -> bool:
        seen.append(weakref.ref(exn))
        return True

    def bad() -> Iterator[dict[str, Any]]:
        sample = Kept(__key__="k", bad=True, error=Bad)
        seen.append(weakref.ref(sample))
        yield sample
        del sample
        yield {"bad": False}

    gc.disable()
    try:
        running = stage(bad(), RecordedHandler(handler, skips()))
        next(running)
        assert [ref() for ref in seen] == [None, None]
    finally:
        gc.enable()


@pytest.mark.webdataset
def test_which_handlers_pass_nothing_over() -> None:
    """webdataset's own that raises, of both of its modules; of another's nobody knows."""
    wds = pytest.importorskip("webdataset")
    assert not passes_over(wds.handlers.reraise_exception)
    assert not passes_over(wds.filters.reraise_exception)
    assert not passes_over(None)
    assert passes_over(wds.warn_and_continue)
    assert passes_over(lambda _: True)
