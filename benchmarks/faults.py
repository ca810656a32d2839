"""Reads through a sidecar whose origin lies, and which is killed and started again meanwhile: how each ended, and whether a byte was wrong.

    python benchmarks/faults.py [--reads 10000] [--seed 1] [--segment 65536] [--restart-every 500] [--json] [--directory DIR]

The same origin, kinds of trouble and readers as tests/faults/test_fault_reads.py, with more of everything: whole, ranged, resumed and
concurrent readers, an origin that is away for a moment now and then, and a sidecar that ends by SIGKILL and SIGTERM in turn. Every byte of
every read is compared with what the origin's version is; the exit code is 1 if one was wrong, if fewer than 99 % of those reads were whole
for which a right answer exists, or if anything was read that nobody can read.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("tests", "proxy", "benchmarks")]

from figures import Figure, as_json, at_least, exactly, lines  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: E402
from support.fault_kinds import Ends  # noqa: E402
from support.fault_reads import Campaign, Restarts, Tally, away_now_and_then, forbidden  # noqa: E402
from support.scripted_origin import ScriptedOrigin  # noqa: E402
from support.sidecar import Sidecar, small_segments, start  # noqa: E402

SAID_EVERY_S = 10.0
RESTART_EVERY = 500
FLAGS = ("--connect-timeout-s", "2", "--idle-timeout-s", "1.5", "--retry-budget-s", "60")


class Phoenix:
    """A sidecar on one cache directory that is ended and started again; its readers repeat what that broke."""

    def __init__(self, directory: Path, origin: ScriptedOrigin, segment: int, size: str) -> None:
        self.restarts = Restarts()
        self._how = {"allow": [origin.base, f"http://localhost:{origin.port}"], "program": small_segments(segment)}
        self._directory = directory
        self._flags = ("--cache-size", size, *FLAGS)
        self.sidecar = self._start()

    def _start(self) -> Sidecar:
        return start(self._directory, *self._flags, **self._how)  # type: ignore[arg-type]

    async def again(self) -> None:
        """End it, by SIGKILL and SIGTERM in turn, and start it."""
        self.restarts.up.clear()
        self.restarts.count += 1
        end = self.sidecar.kill if self.restarts.count % 2 else self.sidecar.terminate
        await asyncio.to_thread(end)
        self.sidecar = await asyncio.to_thread(self._start)
        self.restarts.up.set()

    @asynccontextmanager
    async def every(self, reads: int, ended: Callable[[], int]) -> AsyncIterator[None]:
        """Again and again, each time so many reads have ended; 0: never."""

        done = False

        async def watch() -> None:
            last = 0
            while not done:
                await asyncio.sleep(0.05)
                if ended() - last >= reads:
                    await self.again()
                    last = ended()

        async with asyncio.TaskGroup() as group:  # it is waited for: a sidecar that is just being started must not be forgotten
            if reads:
                group.create_task(watch())
            try:
                yield
            finally:
                done = True


@contextmanager
def progress(total: int, *, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, a line every few seconds elsewhere."""
    console = Console(stderr=True)
    if quiet:
        yield lambda _: None
    elif console.is_terminal:
        columns = (TextColumn("reads"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("reads", total=total)
            yield lambda done: bar.update(task, completed=min(done, total))
    else:
        said = [time.monotonic()]

        def say(done: int) -> None:
            if time.monotonic() - said[0] >= SAID_EVERY_S:
                said[0] = time.monotonic()
                print(f"{done} of {total} reads", file=sys.stderr, flush=True)

        yield say


@dataclass(frozen=True)
class Result:
    """One campaign, and what else is known of it."""

    tally: Tally
    seconds: float
    restarts: int
    faults_of_ours: int
    met: int


async def run(options: argparse.Namespace, directory: Path) -> Result:
    began = time.monotonic()
    async with ScriptedOrigin() as origin, forbidden() as (url, met):
        phoenix = Phoenix(directory, origin, options.segment, f"{max(24, 400 * options.segment // 2**20)}MiB")
        campaign = Campaign(
            origin, lambda: phoenix.sidecar.port, seed=options.seed, segment=options.segment, forbidden=url, restarts=phoenix.restarts
        )
        storms = asyncio.create_task(away_now_and_then(origin))
        try:
            with progress(options.reads, quiet=options.quiet) as told:
                async with phoenix.every(options.restart_every, campaign.tally.reads):
                    tally = await campaign.run(options.reads, told)
        finally:
            storms.cancel()
            await asyncio.to_thread(phoenix.sidecar.terminate)
    faults_of_ours = phoenix.sidecar.log_text().count("a fault in Forebay itself")
    return Result(tally, time.monotonic() - began, phoenix.restarts.count, faults_of_ours, len(met))


def figures(result: Result) -> list[Figure]:
    """What is promised, with what was found."""
    tally = result.tally
    readable = tally.reads(Ends.MENDS)
    return [
        Figure("reads through an origin that lies", tally.reads()),
        Figure("kinds of trouble", len(tally.ends)),
        Figure("restarts of the sidecar meanwhile", result.restarts),
        exactly("reads with a wrong byte", len(tally.wrong), 0),
        Figure("reads for which a right answer exists", readable),
        at_least("of them complete", 100 * tally.complete(Ends.MENDS) / max(1, readable), 99, "%"),
        Figure("reads whose version left meanwhile, or has no name", tally.reads(Ends.EITHER)),
        Figure("of them complete, of one version", 100 * tally.complete(Ends.EITHER) / max(1, tally.reads(Ends.EITHER)), "%"),
        Figure("reads that nobody can serve", tally.reads(Ends.FAILS)),
        exactly("of them not an error", tally.complete(Ends.FAILS), 0),
        exactly("connections to where a redirect must not lead", result.met, 0),
        exactly("faults in the sidecar's log", result.faults_of_ours, 0),
        Figure("seconds", result.seconds, "s"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description="Reads through a sidecar whose origin lies.")
    parser.add_argument("--reads", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--segment", type=int, default=1 << 16, help="bytes; 64 KiB makes shards of many segments cheap, 8388608 is the real one"
    )
    parser.add_argument("--restart-every", type=int, default=RESTART_EVERY, metavar="READS", help="0: never")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--directory", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        result = asyncio.run(run(options, Path(directory)))
    found = figures(result)
    if options.json:
        restarts = "" if options.restart_every == RESTART_EVERY else f" --restart-every {options.restart_every}"
        print(as_json("faults", f"python benchmarks/faults.py --reads {options.reads} --seed {options.seed}{restarts}", found))
    else:
        print(result.tally.table(), *lines(found), sep="\n")
    for wrong in result.tally.wrong:
        print(wrong, file=sys.stderr)
    return 0 if all(figure.ok for figure in found) else 1


if __name__ == "__main__":
    sys.exit(main())
