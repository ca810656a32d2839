"""Whether more workers would pay, where that was measured; else nothing."""

from __future__ import annotations

import pytest

from forebay_loader.meter.report.advice import advice
from forebay_loader.meter.report.cores import CoreUse
from forebay_loader.meter.report.node_view import NodeView, SidecarSums
from forebay_proxy.wire.protocol.meter import CAUSES
from forebay_proxy.wire.protocol.meter_body import MeterBody


def view(workers: int | None = 4, ranks: int = 1, **stall_s: float) -> NodeView:
    body = MeterBody(100.0, {**dict.fromkeys(CAUSES, 0.0), **stall_s}, 100, workers=workers)
    return NodeView({str(rank): body for rank in range(ranks)}, 100.0, 0, SidecarSums("ab", origin_bytes=41_000_000_000))


@pytest.mark.parametrize(
    ("seen", "cores", "said"),
    [
        (view(decode=21.9), CoreUse(16, 0.4), "workers 4 -> 6 would pay: cores idle 40 %"),
        (view(map=70.0), CoreUse(16, 0.4), "workers 4 -> 10 would pay: cores idle 40 %"),  # 14 are wanted, and 6 cores are idle
        (view(decode=21.9), CoreUse(16, 0.04), "more workers would not pay: 0.6 of 16 cores idle"),
        (view(decode=21.9, ranks=8), CoreUse(16, 0.4), "more workers would not pay: 6.4 of 16 cores idle"),  # and 8 ranks want them
        (view(0, decode=60.0), CoreUse(4, 0.75), "workers 0 -> 2 would pay: cores idle 75 %"),
        (view(origin=30.0), CoreUse(16, 0.9), "more workers would not pay: the origin gives 410.0 MB/s"),
        (view(disk=30.0, read=5.0), CoreUse(16, 0.9), "more workers would not pay: they wait for the cache's disk"),
        (view(decode=1.0), CoreUse(16, 0.9), ""),
        (view(transfer=30.0), CoreUse(16, 0.9), ""),
        (view(start=30.0), CoreUse(16, 0.9), ""),
        (view(decode=30.0), None, ""),
        (view(None, decode=30.0), CoreUse(16, 0.9), ""),
        (NodeView(), CoreUse(16, 0.9), ""),
    ],
)
def test_what_is_said(seen: NodeView, cores: CoreUse | None, said: str) -> None:
    """By what the slowest rank's workers did, and by what is left of the cores."""
    assert advice(seen, cores) == said
