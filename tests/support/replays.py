"""Small workloads for the simulator: shards of a few segments, told by number."""

from __future__ import annotations

from collections.abc import Sequence

from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.core.shard import Shard
from forebay_proxy.simulate.origin import SimulatedLine
from forebay_proxy.simulate.workload import ALL, Script, Workload
from forebay_proxy.wire.protocol.plan import ReaderName
from forebay_proxy.wire.urls.shard_url import parse_origin_url

__all__ = ["LINE", "name_of", "shards", "small"]

LINE = SimulatedLine(bytes_s=400e6, connection_bytes_s=100e6, latency_s=0.05)


def name_of(number: int) -> str:
    return f"https://o/set/{number}.tar"


def shards(count: int) -> list[Shard]:
    return [Shard.of(parse_origin_url(name_of(number))) for number in range(count)]


def small(
    orders: Sequence[Sequence[Sequence[int]]], *, segments: int = 1, rate: float | None = 100e6, ahead: int | None = ALL, jobs: bool = False
) -> Workload:
    """Readers by the numbers of their shards, epoch by epoch; of one job, or with ``jobs`` each of its own."""
    count = 1 + max((number for epochs in orders for epoch in epochs for number in epoch), default=0)
    known = shards(count)
    scripts = tuple(
        Script(
            ReaderName(f"job{number if jobs else 0}", "0", str(number), f"{number}.0"),
            tuple(tuple(known[shard] for shard in epoch) for epoch in epochs),
            rate,
        )
        for number, epochs in enumerate(orders)
    )
    return Workload(scripts, {shard.name: segments * SEGMENT_BYTES for shard in known}, ahead, barrier=not jobs)
