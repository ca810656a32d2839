"""A page of the meter: what is written is read, also of a long time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from forebay_loader.meter.page import PAGE_BYTES, SPANS, MeterPage, PageWriter
from forebay_proxy.wire.protocol.meter import CAUSE_INDEX, CAUSES

DECODE, READ = CAUSE_INDEX["decode"], CAUSE_INDEX["read"]
NO_WAIT = [0] * len(CAUSES)


@pytest.fixture
def page() -> MeterPage:
    return MeterPage(bytearray(PAGE_BYTES))


@pytest.fixture
def written(page: MeterPage) -> PageWriter:
    return PageWriter(page, pid=7, start_time=8, worker=3, now_ns=100)


def test_what_is_booked_is_seen(written: PageWriter, page: MeterPage) -> None:
    """Its words, its sums by cause, and what it did between two moments."""
    written.book([(150, READ), (400, DECODE)], 410, DECODE, 150)
    written.sums([5, *NO_WAIT[1:]], bytes=99, skipped=3)
    written.tell("s3://bucket/a.tar", "")
    found = page.view()
    assert (found.pid, found.worker, found.heartbeat_ns, found.settled_ns) == (7, 3, 410, 400)
    assert (found.bytes, found.skipped, found.shard, found.stack) == (99, 3, "s3://bucket/a.tar", "")
    assert found.waited_ns["origin"] == 5
    assert page.spans(120, 200) == [(120, 150, "read"), (150, 200, "decode")]


def test_the_ring_forgets_the_oldest(written: PageWriter, page: MeterPage) -> None:
    """What is left adjoins, and is right."""
    for number in range(2 * SPANS):
        written.book([(200 + 10 * number, READ if number % 2 else DECODE)], 0, READ, 0)
    end = 200 + 10 * (2 * SPANS - 1)
    found = page.spans(100, end)
    assert SPANS - 10 < len(found) < SPANS
    assert found[-1] == (end - 10, end, "read")
    assert all(one[1] == other[0] for one, other in pairwise(found))


def test_a_long_text_is_cut(written: PageWriter, page: MeterPage) -> None:
    written.tell("é" * 5000, "x" * 50_000)
    found = page.view()
    assert found.shard.startswith("é" * 500)
    assert 5000 < len(found.stack) < PAGE_BYTES
