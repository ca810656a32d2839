"""A soak: readers come, plan, stall and die, the origin fails at random, for minutes or hours; then the leaks are looked for.

    python benchmarks/soak.py [--minutes 15] [--readers 64] [--json] [--seed 1] [--cache-size 120MB]
        [--rss-limit 10] [--lag-limit 100] [--whole-limit 99]

The sidecar is the real command. Its cache holds half of the data set (crowd.py), so segments leave all the time. Every 5 s its memory,
descriptors, threads and tasks are noted, every 0.25 s /healthz is asked, every 50 ms the disk is looked at. Exit code 1 if any limit is
broken:

- no wrong byte, no byte over the disk's bound, no read that hangs, no fault in the log, a clean end;
- memory: the least-squares slope of the second half, at most 10 MiB/h: a machine that trains for a month then loses 7 GiB, below a percent
  of a training node's memory. A slope that is not twice its own error is none, and a short run may hold one step of 4 MiB: whether there is
  a leak is seen in 40 minutes, not in 15;
- descriptors and threads back to what they were before the crowd came;
- the event loop's lag: 99 of 100 looks below 100 ms, as the sidecar measures itself. Beside it stands what a process that does nothing but
  sleep saw on the same machine, since a late wake-up may be the machine's doing.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / part) for part in ("tests", "proxy", "benchmarks")]

from figures import Figure, as_json, at_least, at_most, exactly, lines  # noqa: E402
from support.disk_sampler import sampling  # noqa: E402
from support.sidecar import Sidecar, running  # noqa: E402

from forebay_proxy.core.quantities import parse_size  # noqa: E402

EVERY_S = 5.0
PROBE_EVERY_S = 0.25
# 64 MiB of imports, 64 MiB of body buffers, 64 readers with a buffer of up to 1 MiB each, and as much again as one of these for the rest.
RSS_MOST_MIB = 256
# Memory grows in steps of 2 to 4 MiB until it has held the most of everything at once, after about a quarter of an hour; then it is level
# (40 minutes: 117 MiB after 3, 127 after 15, 127 after 27).
STEP_MIB = 4
# Idle files are closed, connections of the crowd are gone; the plans of readers that died end after a minute, and what is asked for them
# of an origin that has gone is given up 15 s later.
SETTLE_S = 80.0
FLAGS = ("--connect-timeout-s", "2", "--idle-timeout-s", "3", "--retry-budget-s", "60", "--drain-timeout-s", "5")
_FAULTS = re.compile(r"Traceback|a fault in Forebay|failed unexpectedly")


@dataclass(frozen=True)
class Sample:
    """One look at the sidecar from outside; ``tasks`` as it says itself."""

    at_s: float
    rss_mib: float
    fds: int
    threads: int
    tasks: int


@dataclass
class Probe:
    """How long /healthz took, and how late a thread that only sleeps woke up: seconds each."""

    answers: list[float] = field(default_factory=list)
    wakes: list[float] = field(default_factory=list)


def sample(sidecar: Sidecar, began: float) -> Sample:
    proc = Path(f"/proc/{sidecar.process.pid}")
    fields = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
    rss_mib = int(fields["VmRSS"].split()[0]) / 1024
    tasks = int(sidecar.status().get("tasks", 0))
    return Sample(time.monotonic() - began, rss_mib, len(os.listdir(proc / "fd")), int(fields["Threads"]), tasks)


@contextmanager
def probing(port: int) -> Iterator[Probe]:
    """Ask /healthz for the length of the ``with``, on one connection."""
    probe, over = Probe(), threading.Event()

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        due = time.monotonic()
        while not over.is_set():
            due += PROBE_EVERY_S
            over.wait(max(0.0, due - time.monotonic()))
            asked = time.monotonic()
            probe.wakes.append(max(0.0, asked - due))
            try:
                connection.request("GET", "/healthz")
                connection.getresponse().read()
            except (OSError, http.client.HTTPException):
                connection.close()
            else:
                probe.answers.append(time.monotonic() - asked)
            due = max(due, time.monotonic() - PROBE_EVERY_S)
        connection.close()

    thread = threading.Thread(target=ask, name="probe")
    thread.start()
    try:
        yield probe
    finally:
        over.set()
        thread.join()


def slope(samples: Sequence[Sample]) -> tuple[float, float]:
    """(MiB an hour by least squares, its standard error)."""
    hours = [each.at_s / 3600 for each in samples]
    values = [each.rss_mib for each in samples]
    if len(samples) < 3:
        return 0.0, 0.0
    fit = statistics.linear_regression(hours, values)
    residuals = [value - fit.intercept - fit.slope * hour for hour, value in zip(hours, values, strict=True)]
    spread = sum((hour - statistics.fmean(hours)) ** 2 for hour in hours)
    return fit.slope, (sum(each**2 for each in residuals) / (len(samples) - 2) / spread) ** 0.5


def _one_step(samples: Sequence[Sample]) -> float:
    """The slope, in MiB an hour, that one step of an allocator's high-water mark makes: in a short run it cannot be told from a leak."""
    return STEP_MIB / max(1e-3, (samples[-1].at_s - samples[0].at_s) / 3600)


def quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


_BUCKET = re.compile(r'^forebay_event_loop_lag_seconds_bucket\{.*?le="([^"]+)".*?\} (\S+)$', re.MULTILINE)


def lag_quantile(exposition: str, share: float) -> float:
    """Below it lies that share of the loop's looks, in seconds; within a bucket by interpolation, as Prometheus does it."""
    buckets = [(float(bound), float(count)) for bound, count in _BUCKET.findall(exposition)]
    wanted = share * buckets[-1][1]
    below_s, before = 0.0, 0.0
    for bound_s, count in buckets:
        if count >= wanted and count > before:
            return bound_s if bound_s == float("inf") else below_s + (bound_s - below_s) * (wanted - before) / (count - before)
        below_s, before = bound_s, count
    return below_s


@dataclass
class Soak:
    """One run of it."""

    arguments: argparse.Namespace
    samples: list[Sample] = field(default_factory=list)
    told: dict[str, Any] = field(default_factory=dict)

    def run(self, directory: Path) -> list[Figure]:
        arguments = self.arguments
        command = [sys.executable, str(Path(__file__).with_name("crowd.py"))]
        command += [str(arguments.readers), str(arguments.seed), str(arguments.minutes)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as crowd:
            assert crowd.stdout is not None
            base = json.loads(crowd.stdout.readline())["origin"]
            with running(directory, "--cache-size", arguments.cache_size, *FLAGS, allow=[base]) as sidecar:
                return self._beside(sidecar, crowd, base)

    def _beside(self, sidecar: Sidecar, crowd: subprocess.Popen[str], base: str) -> list[Figure]:
        began = time.monotonic()
        sidecar.ask(sidecar.proxied(f"{base}/set/000.tar").removeprefix(sidecar.url))  # what is opened once and kept: index, origin
        before = self._settled(sidecar, began, None, 2.0)
        with sampling(sidecar.cache_dir, sidecar.process.pid) as disk, probing(sidecar.port) as probe:
            self._watch(sidecar, crowd, began)
        exposition = sidecar.ask("/metrics").decode()
        if self.arguments.minutes < 1:  # a longer one waits for plans to end by themselves
            for plan in json.loads(sidecar.ask("/v1/plans"))["plans"]:
                sidecar.ask(f"/v1/plans/{plan['reader']}", method="DELETE")
        after = self._settled(sidecar, began, before, SETTLE_S)
        status = sidecar.status()
        log = sidecar.log_text()
        code = sidecar.terminate()
        capacity = parse_size(self.arguments.cache_size)
        counts = self.told["counts"]
        reads = counts["whole"] + counts["cut"] + counts["refused"]
        half = [each for each in self.samples if each.at_s > self.samples[-1].at_s / 2]
        slope_mib, error_mib = slope(half)
        steady = slope_mib if abs(slope_mib) > 2 * error_mib else 0.0
        return [
            Figure("minutes", self.arguments.minutes),
            Figure("readers", self.arguments.readers),
            Figure("shards read", reads),
            Figure("bytes compared", self.told["bytes"] / 1e9, "GB"),
            exactly("wrong bytes: places", counts["wrong"] + len(self.told["wrong"]), 0),
            exactly("reads that hung", counts["hung"], 0),
            at_least("reads that came whole", 100 * counts["whole"] / max(1, reads), self.arguments.whole_limit, "%"),
            Figure("readers that died in a body", counts["died"]),
            Figure("reader processes stopped by SIGSTOP", counts["stopped processes"]),
            Figure("origin bytes", status["bytes"]["origin"] / 1e9, "GB"),
            Figure("disk looked at", disk.samples, "times"),
            exactly("bytes over the disk's bound", max(0, disk.peak_bytes - capacity), 0),
            at_most("most memory", max(each.rss_mib for each in self.samples), RSS_MOST_MIB, "MiB"),
            at_most("memory's slope, second half", steady, max(self.arguments.rss_limit, _one_step(half)), "MiB/h"),
            Figure("its least-squares value", slope_mib, "MiB/h"),
            Figure("its standard error", error_mib, "MiB/h"),
            at_most("descriptors left over", max(0, after.fds - before.fds), 0),
            at_most("tasks left over", max(0, after.tasks - before.tasks), 0),
            Figure("most descriptors", max(each.fds for each in self.samples)),
            Figure("most threads", max(each.threads for each in self.samples)),
            at_most("event loop lag, 99 of 100", 1000 * lag_quantile(exposition, 0.99), self.arguments.lag_limit, "ms"),
            Figure("/healthz, 99 of 100", 1000 * quantile(probe.answers, 0.99), "ms"),
            Figure("/healthz, slowest", 1000 * max(probe.answers), "ms"),
            Figure("a sleeping thread's lag beside it, 99 of 100", 1000 * quantile(probe.wakes, 0.99), "ms"),
            exactly("faults in the log", len(_FAULTS.findall(log)), 0),
            exactly("exit code", code, 0),
        ]

    def _watch(self, sidecar: Sidecar, crowd: subprocess.Popen[str], began: float) -> None:
        assert crowd.stdin is not None
        assert crowd.stdout is not None
        crowd.stdin.write(f"{sidecar.port}\n")
        crowd.stdin.flush()
        due = EVERY_S
        for line in crowd.stdout:
            self.told = json.loads(line)
            if time.monotonic() - began >= due and not self.told["ended"]:
                due += EVERY_S
                self.samples.append(sample(sidecar, began))
                if not self.arguments.json or not len(self.samples) % 12:
                    self._say()
        assert crowd.wait() == 0, "the crowd itself failed"
        self.told["counts"] = dict.fromkeys(_COUNTS, 0) | self.told["counts"]

    def _say(self) -> None:
        last, counts = self.samples[-1], self.told["counts"]
        print(
            f"{last.at_s:5.0f} s  {last.rss_mib:6.1f} MiB  {last.fds:4d} fds  {last.threads:3d} threads  {last.tasks:4d} tasks  "
            f"{counts.get('whole', 0):6d} whole, {counts.get('cut', 0)} cut, {counts.get('refused', 0)} refused, "
            f"{counts.get('wrong', 0)} wrong, {self.told['bytes'] / 1e9:.1f} GB",
            file=sys.stderr, flush=True,
        )  # fmt: skip

    def _settled(self, sidecar: Sidecar, began: float, before: Sample | None, within_s: float) -> Sample:
        """What it comes down to once every shard is let go of and nobody asks: at most ``before``, or what it is after a while."""
        sidecar.ask("/v1/evict", b'{"all": true}')
        end = time.monotonic() + within_s
        while True:
            now = sample(sidecar, began)
            if (before is not None and now.fds <= before.fds and now.tasks <= before.tasks) or time.monotonic() > end:
                return now
            time.sleep(0.5)


_COUNTS = ("whole", "cut", "refused", "wrong", "hung", "died", "stopped processes", "evictions", "plans", "slow")


def parsed(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--readers", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cache-size", default="120MB")
    parser.add_argument("--rss-limit", type=float, default=10, metavar="MIB_PER_HOUR")
    parser.add_argument("--lag-limit", type=float, default=100, metavar="MS", help="100 needs a machine that does nothing else")
    parser.add_argument("--whole-limit", type=float, default=99, metavar="PERCENT", help="of the reads; a soak of seconds has few")
    parser.add_argument("--samples", type=Path, metavar="FILE", help="also write what was noted, a JSON line each")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def main() -> int:
    arguments = parsed()
    with tempfile.TemporaryDirectory(prefix="forebay-soak-") as directory:
        soak = Soak(arguments)
        figures = soak.run(Path(directory))
    if arguments.samples:
        arguments.samples.write_text("".join(json.dumps(vars(each)) + "\n" for each in soak.samples))
    for name, count in sorted(soak.told["errors"].items(), key=lambda item: -item[1])[:8]:
        print(f"{count:5d} x {name}", file=sys.stderr)
    for place in soak.told["wrong"]:
        print(f"wrong: {place}", file=sys.stderr)
    command = f"python benchmarks/soak.py --minutes {arguments.minutes:g}"
    print(as_json("soak", command, figures) if arguments.json else "\n".join(lines(figures)))
    return 0 if all(figure.ok for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
