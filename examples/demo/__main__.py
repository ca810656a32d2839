"""``python -m demo``: five acts on made shards, or the comparison on your own."""

from __future__ import annotations

import argparse
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from demo import acts, yours
from demo.processes import OriginProcess, PartFailed, Sidecar
from demo.report import Report
from demo.scale import Scale
from demo.shards import NoPhotographs, build

__all__ = ["main"]

MIN_CACHE_BYTES = 256_000_000  # a few segments for each reader, however small the limit


def play(report: Report, scale: Scale, root: Path) -> bool:
    """All five acts; True when every promise was kept."""
    shards = root / "shards"
    shards.mkdir()
    with report.working(f"making {scale.shards} shards of photographs") as say:
        built = build(shards, scale.shards, scale.shard_bytes, lambda done: say(f"made {done} of {scale.shards} shards"))
    cache_bytes = 4 * built.bytes  # room for the epoch and for its second name in act 4
    with (
        OriginProcess(shards, latency_ms=scale.latency_ms, rate_mb=scale.rate_mb) as origin,
        Sidecar(root, cache_bytes, [origin.base], [shards]) as sidecar,
    ):
        stage = acts.Stage(report, scale, root, built, origin, sidecar)
        acts.origin_act(stage)
        rows = acts.side_by_side_act(stage)
        trained = acts.model_act(stage)
        _, cut = acts.cut_act(stage)
        killed = acts.kill_act(stage)
    whole = [row.epoch for row in rows] + [trained, killed]
    one_shard = cut["samples"] == acts.samples_in_first_shard(stage) and not cut["error"]
    return one_shard and all(epoch["samples"] == built.samples and not epoch["error"] for epoch in whole)


def play_yours(report: Report, scale: Scale, root: Path, patterns: Sequence[str]) -> bool:
    """The comparison on the user's shards; True when no row failed."""
    found = yours.sources(patterns)
    report.heading("1", "The bytes alone, without a trainer: forebay try")
    yours.read_alone(patterns, scale)
    cache_bytes = max(scale.limit_bytes * 5 // 4, MIN_CACHE_BYTES)
    if shutil.disk_usage(root).free < cache_bytes:
        report.line(
            f"less than {cache_bytes / 1e9:.1f} GB free in {root}: part of the epoch will not stay cached (TMPDIR chooses the disk)"
        )
    with Sidecar(root, cache_bytes, yours.allowed_origins(found)) as sidecar:
        rows = yours.compare(report, scale, sidecar, found, root)
    return not any(row.epoch["error"] for row in rows)


def now_yours(report: Report, patterns: Sequence[str]) -> None:
    """The one line that does the same to any training command."""
    beside = Path(sys.executable).with_name("forebay")
    if not beside.exists():  # a source tree that was never installed
        command = f"{shlex.quote(sys.executable)} -m forebay_proxy"
    else:
        command = "forebay" if shutil.which("forebay") == str(beside) else shlex.quote(str(beside))
    report.heading("3" if patterns else "5", "now yours: your training command, unchanged")
    report.line(f"[bold]{command} run -- python train.py[/]")
    if not patterns:
        report.line("[dim](or torchrun …, accelerate launch …: whatever you type today)[/]")
        report.line("[dim]or this comparison on your own shards:[/]  scripts/demo 's3://bucket/shards/{00000..00099}.tar'")


def parse(arguments: Sequence[str] | None) -> tuple[Scale, list[str]]:
    default = Scale()
    parser = argparse.ArgumentParser(prog="scripts/demo", description="What Forebay does to a training loop, measured on this machine.")
    parser.add_argument("urls", nargs="*", metavar="URL", help="your own shards instead: URLs, patterns, pipe: commands")
    parser.add_argument("--shards", type=int, default=default.shards, help="how many to make (default: %(default)s)")
    parser.add_argument("--shard-mb", type=float, default=default.shard_bytes / 1e6, help="how large (default: %(default)s)")
    parser.add_argument("--latency-ms", type=float, default=default.latency_ms, help="of the origin (default: %(default)s)")
    parser.add_argument("--rate-mb", type=float, default=default.rate_mb, help="MB/s of one connection (default: %(default)s)")
    parser.add_argument("--step-ms", type=float, default=default.step_ms, help="of a training step (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=default.batch, help="samples a step (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=default.workers, help="DataLoader workers (default: %(default)s)")
    parser.add_argument("--limit-gb", type=float, default=default.limit_bytes / 1e9, help="of your own shards (default: %(default)s)")
    given = parser.parse_args(arguments)
    scale = Scale(
        shards=given.shards,
        shard_bytes=int(given.shard_mb * 1e6),
        latency_ms=given.latency_ms,
        rate_mb=given.rate_mb,
        step_ms=given.step_ms,
        batch=given.batch,
        workers=given.workers,
        limit_bytes=int(given.limit_gb * 1e9),
    )
    return scale, given.urls


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 when all went as promised, 1 when something did not, 2 when it could not be shown."""
    scale, patterns = parse(arguments)
    report, started = Report(), time.monotonic()
    try:
        with tempfile.TemporaryDirectory(prefix="forebay-demo-") as root:
            kept = play_yours(report, scale, Path(root), patterns) if patterns else play(report, scale, Path(root))
    except (NoPhotographs, PartFailed, yours.NotForUs) as error:
        report.line(f"[red]{error}[/]")
        return 2
    except KeyboardInterrupt:
        report.line("interrupted")
        return 130
    now_yours(report, patterns)
    report.line(f"\n   [dim]{time.monotonic() - started:.0f} s altogether[/]" if kept else "[red]not everything went as promised[/]")
    return 0 if kept else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _interrupt)  # or our processes and directory would outlive us
    sys.exit(main())
