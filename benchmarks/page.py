"""Makes the pictures of the status page in docs/: a quarter of an hour of a training, played on a clock of its own in some seconds.

    python benchmarks/page.py [--into docs]

Cache, plans, prefetch, history, map, verdict and page are the real ones. The origin is one in this process, the training two ranks of four
workers each, and what it says of its stalls is in the script: it does not wait at first; then the origin slows down.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import math
import os
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests")]

from PIL import Image  # noqa: E402
from support.browser import Page, browsing  # noqa: E402
from support.fake_cache import FakePlans  # noqa: E402
from support.fake_origin import FakeOrigin  # noqa: E402
from support.house import World, building, shard_of  # noqa: E402
from support.scripted_answers import ramp  # noqa: E402
from support.tarmaking import hand_header  # noqa: E402

from forebay_proxy.app.status import ServiceInfo, StatusReport, TelemetryParts  # noqa: E402
from forebay_proxy.config.settings import Settings  # noqa: E402
from forebay_proxy.core.facts.origins import OriginAnswered  # noqa: E402
from forebay_proxy.core.facts.requests import RequestDone, RequestOutcome, Served  # noqa: E402
from forebay_proxy.server.http.page_routes import PageSources  # noqa: E402
from forebay_proxy.server.http.server import HttpServer  # noqa: E402
from forebay_proxy.server.net.access import Access  # noqa: E402
from forebay_proxy.telemetry.history import History  # noqa: E402
from forebay_proxy.wire.protocol.meter import CAUSES, MeterBody  # noqa: E402
from forebay_proxy.wire.protocol.plan import ReaderName  # noqa: E402

SEGMENT_BYTES = 256 * 1024
SHARD_BYTES = 4 * SEGMENT_BYTES - 1000
SHARDS = 480
JOB = "resnet-ablation-20260411"
NAMES = [f"s3://training-data/imagenet/train-{number:06d}.tar" for number in range(SHARDS)]
ORIGIN = "s3://training-data"
READERS = [ReaderName(JOB, str(rank), str(worker), f"{4000 + rank}.{worker}") for rank in range(2) for worker in range(4)]
STEP_S = 5.0
STEPS = 180


class SlowOrigin(FakeOrigin):
    """Bodies go on while ``left`` pieces may be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.left = math.inf
        self._more = asyncio.Event()

    def allow(self, pieces: float) -> None:
        self.left = pieces
        self._more.set()

    async def _chunks(self, *of: Any) -> AsyncGenerator[bytes, None]:
        async with aclosing(super()._chunks(*of)) as chunks:
            async for chunk in chunks:
                while self.left < 1:
                    self._more.clear()
                    await self._more.wait()
                self.left -= 1
                yield chunk


class Training:
    """Two ranks, played in steps of 5 s. ``slow``: from which step on the origin is."""

    def __init__(self, world: World, origin: SlowOrigin, telemetry: TelemetryParts, report: StatusReport, slow: int) -> None:
        self.world, self.origin, self.telemetry, self.report, self.slow = world, origin, telemetry, report, slow
        self.turns = [asyncio.Semaphore(0) for _ in READERS]
        self.stalls = [dict.fromkeys(CAUSES, 0.0) for _ in range(2)]
        self.samples = [0.0, 0.0]
        self.wall_s = 0.0

    async def read(self, number: int) -> None:
        """One reader's epochs, a part of a shard each turn."""
        reader, names = READERS[number], NAMES[number :: len(READERS)]
        for epoch in range(99):
            self.world.plans.replace(reader, [shard_of(name) for name in names], epoch)
            for name in names:
                async with self.world.opened(name, reader) as reading:
                    position, until = 0, 0.0
                    async for chunk in reading.chunks():
                        position += len(chunk)
                        while position > until:
                            await self.turns[number].acquire()
                            until += SHARD_BYTES / 3.5
                    hit = reading.hit_bytes
                outcome = RequestOutcome.HIT if hit == SHARD_BYTES else RequestOutcome.MISS
                served = Served(name, reader, epoch, SHARD_BYTES, None, 0.0, "", 0.0)
                self.world.events.emit(RequestDone("GET", 200, outcome, SHARD_BYTES, 0.001, 1.0, hit, JOB, served))

    async def step(self, count: int) -> None:
        """What 5 s bring."""
        slow = count >= self.slow
        self.wall_s += STEP_S
        for number, turn in enumerate(self.turns):
            for _ in range(3 + (count + number) % 2 if turn.locked() else 0):
                turn.release()
        if slow:
            self.origin.allow(45 + 10 * (count % 3) if count < STEPS - 3 else 0)
        self.world.events.emit(OriginAnswered(ORIGIN, "GET", 206, 0.048 + 0.002 * (count % 7) if slow else 0.031))
        self.tell(count, slow=slow)
        for _ in range(5):
            self.world.clock.advance(STEP_S / 5)
            self.world.limiters.look_again()
            self.world.prefetcher.look_again()
            self.world.cache.readers.waits.look(len(READERS))
            self.report.look()
            await asyncio.sleep(0.004)

    def tell(self, count: int, *, slow: bool) -> None:
        """What each rank says of its stalls."""
        for rank in range(2):
            waits_s = STEP_S * (min(0.45 - 0.06 * rank, 0.03 * (count - self.slow)) if slow else 0.006 + 0.004 * (count % 5 == 0))
            for cause, part in (("origin", 0.86), ("decode", 0.09), ("collate", 0.05)) if slow else (("decode", 0.7), ("transfer", 0.3)):
                self.stalls[rank][cause] += waits_s * part
            self.samples[rank] += (STEP_S - waits_s) * (412 - 9 * rank + 6 * (count % 3))
            if count % 2:
                body = MeterBody(
                    self.wall_s, dict(self.stalls[rank]), int(self.samples[rank] / 64), samples=int(self.samples[rank]), batch_size=64,
                    workers=4, slowest_worker=rank + 1 if slow else None, slowest_shard=NAMES[count + rank] if slow else None,
                )  # fmt: skip
                self.telemetry.meters.take(ReaderName(JOB, str(rank), "main", f"{4000 + rank}.0"), body)


DATA = hand_header(b"0.bin", SHARD_BYTES - 1536) + ramp(SHARD_BYTES - 512)
PICTURES = (
    ("page-waits.png", "waits", "light", (1280, 1900)),
    ("page-phone.png", "waits", "light", (390, 1700)),
    ("page-fine-dark.png", "fine", "dark", (1280, 1300)),
)


async def make(into: Path) -> None:
    """All pictures."""
    with tempfile.TemporaryDirectory() as directory:
        async with browsing(Path(directory, "profile")) as page:
            for scene, slow in (("waits", 96), ("fine", STEPS)):
                origin = SlowOrigin()
                for name in NAMES:
                    origin.put(name, DATA, chunk_bytes=SEGMENT_BYTES // 2)
                here = building(
                    Path(directory, scene),
                    segments=SHARDS * 4 * 2 // 3,
                    segment_bytes=SEGMENT_BYTES,
                    prefetch=True,
                    checked=False,
                    origin=origin,
                )
                async with here as world, AsyncExitStack() as life:
                    url = await played(world, origin, slow, life)
                    for name, of, scheme, size in PICTURES:
                        if of == scene:
                            await take_picture(page, url, into / name, scheme, size)
                await page.go("about:blank")


async def played(world: World, origin: SlowOrigin, slow: int, life: AsyncExitStack) -> str:
    """The quarter of an hour; returns where its page is."""
    telemetry = TelemetryParts.build(world.events, world.clock, SEGMENT_BYTES)
    report = StatusReport(world.parts, telemetry, "ab" * 8, world.clock)
    report.history = History(world.clock, world.clock)
    training = Training(world, origin, telemetry, report, slow)
    for number in range(len(READERS)):
        life.callback(asyncio.create_task(training.read(number)).cancel)
    for count in range(STEPS):
        await training.step(count)
    life.callback(origin.allow, math.inf)
    server = HttpServer(
        cache=world.cache, plans=FakePlans(), operations=world.operations,  # type: ignore[arg-type]
        status=lambda: {**report.status(), "log": None},
        page=PageSources(report.history, report.shard_map), announced=report.announced, meters=telemetry.meters,
        meter_page=report.meter_page, metrics=telemetry.metrics.render, access=Access(os.getuid()), events=world.events,
    )  # fmt: skip
    await server.start("127.0.0.1", 0, None)
    life.push_async_callback(server.aclose)
    report.introduce(ServiceInfo(server.address.url, 7070, None, Path("/local/forebay"), "ab" * 8, 1, "", ()), Settings(), lambda: None)
    return server.address.url


async def take_picture(page: Page, url: str, path: Path, scheme: str, size: tuple[int, int]) -> None:
    """The page from its top, as high as ``size`` says, in few colours."""
    await page.scheme(scheme)
    await page.size(*size, phone=size[0] < 500)
    await page.go(url)
    await page.until("document.querySelectorAll('#readers tr').length > 1 && map.names.length > 0 && past.length > 100")
    await asyncio.sleep(2.5)  # readers have come to their places
    picture = Image.open(io.BytesIO(await page.picture())).convert("RGB")
    picture.quantize(96, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)
    print(path, path.stat().st_size, picture.size, page.complaints)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=Path(__file__).resolve().parents[1] / "docs", help="where the pictures go")
    asyncio.run(make(parser.parse_args().into))
