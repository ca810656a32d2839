"""With a mover a shard comes as without one, and a mover that is killed in its middle is not noticed by its reader."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from support.readers import make_shard, read
from support.scripted_origin import ScriptedOrigin
from support.sidecar import Sidecar, running, wait_until

from forebay_proxy.core.segments import DEFAULT_LAYOUT, SEGMENT_BYTES

SIZE = 2 * SEGMENT_BYTES + 777


def movers_of(sidecar: Sidecar) -> list[int]:
    pid = sidecar.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


async def test_shard_comes_through_a_mover_and_through_its_death(place: Path, origin: ScriptedOrigin) -> None:
    """Each segment is asked for once; with the mover killed while a body stands still, it is asked for again from its next byte."""
    gate = asyncio.Event()
    files = [make_shard(place / f"{number}.tar", SIZE, number) for number in range(2)]
    origin.put("/0.tar", files[0].read_bytes())
    origin.put("/1.tar", files[1].read_bytes(), body_gate=gate, gate_at=3_000_000)
    with running(place, "--cache-size", "200MB", "--movers", "1", allow=[origin.base]) as sidecar:
        await asyncio.to_thread(wait_until, lambda: movers_of(sidecar))
        first = await asyncio.to_thread(read, sidecar.proxied(origin.url("/0.tar")), files[0])
        assert (first.whole, len(origin.seen("/0.tar"))) == (True, DEFAULT_LAYOUT.count(SIZE))
        reading = asyncio.create_task(asyncio.to_thread(read, sidecar.proxied(origin.url("/1.tar")), files[1]))
        await asyncio.wait_for(origin.until(lambda: len(origin.seen("/1.tar")) >= 1), 30)
        await asyncio.sleep(0.2)
        os.kill(movers_of(sidecar)[0], signal.SIGKILL)
        gate.set()
        assert (await reading).whole
        assert len(origin.seen("/1.tar")) > DEFAULT_LAYOUT.count(SIZE)
