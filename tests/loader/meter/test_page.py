"""A page of the meter: what is written is read, also of a long time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from forebay_loader.meter.page import PAGE_BYTES, SPANS, MeterPage, PageWriter
from forebay_proxy.wire.protocol.meter import CAUSE_INDEX

DECODE, READ = CAUSE_INDEX["decode"], CAUSE_INDEX["read"]


@pytest.fixture
def page() -> MeterPage:
    return MeterPage(bytearray(PAGE_BYTES))


@pytest.fixture
def written(page: MeterPage) -> PageWriter:
    return PageWriter(page, pid=7, start_time=8, worker=3, now_ns=100)


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
