"""What a plan of a whole public set takes."""

from __future__ import annotations

import gc
import random
import time
import tracemalloc

from support.house import reader
from support.lengths import ordinarily

from forebay_proxy.policy.plans.entries import Entries
from forebay_proxy.policy.plans.registry import PlanRegistry


def test_a_large_plan_takes_little_room_and_time() -> None:
    """200 bytes an entry of a name of 50 characters, and no slice holds the loop for long (a generous bound: the machine is shared)."""
    pattern = "s3://laion/{laion2B-en,laion2B-multi}/images/part-{0..9}/{000000..004999}.tar"
    order, plans, slices = (
        list(range(ordinarily(30_000, of=100_000, what="shards of a large plan"))),
        PlanRegistry(time.monotonic),
        list[float](),
    )
    random.Random(1).shuffle(order)
    gc.collect()
    before = len(gc.get_objects())
    tracemalloc.start()
    try:
        plans.replace(reader(0), Entries([], pattern=pattern, indices=order))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held / len(order) < 200
    assert len(gc.get_objects()) - before < 100  # nothing in it for the garbage collector to walk through
    taking = plans.replacing(reader(1), Entries([], pattern=pattern, indices=order))
    began = time.thread_time()
    for _ in taking:
        slices.append(time.thread_time() - began)
        began = time.thread_time()
    assert max(slices) < 0.25
