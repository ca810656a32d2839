"""What the demo shows, act by act. Each takes the stage (origin, shards, directory, report) and prints its own findings."""

from __future__ import annotations

import os
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.processes import OriginProcess, Sidecar, run_trainer
from demo.report import Report, Row, Say, megabytes
from demo.scale import Scale
from demo.shards import Built, member_boundary, sample_names

__all__ = ["Stage", "cut_act", "kill_act", "model_act", "origin_act", "samples_in_first_shard", "side_by_side_act"]

CUT_AT = 0.55  # of the shard's samples
KILL_AT = 0.4  # of the epoch's samples
RESTART_S = 1.0  # what a supervisor takes to notice


@dataclass(frozen=True)
class Stage:
    """Where the acts play. ``root`` holds ``shards/`` (what the origin serves) and the sidecar's files; all of it goes in the end."""

    report: Report
    scale: Scale
    root: Path
    built: Built
    origin: OriginProcess
    sidecar: Sidecar

    def pattern(self, folder: str = "") -> str:
        """All shards as one brace pattern, below the origin; ``folder`` is a second name for the same files."""
        last = len(self.built.names) - 1
        return self.origin.url(f"{folder}photos-{{0000..{last:04d}}}.tar")

    def local_pattern(self) -> str:
        return f"{self.built.directory}/photos-{{0000..{len(self.built.names) - 1:04d}}}.tar"

    def again(self, folder: str) -> None:
        """Serve the same files below ``folder`` too: new names, so nothing of them is cached."""
        (self.built.directory / folder).mkdir()
        for name in self.built.names:
            os.link(self.built.directory / name, self.built.directory / folder / name)


def curl(url: str) -> str:
    """The ``pipe:`` command people write."""
    return f"pipe:curl -s -f -L {url}"


def origin_act(stage: Stage) -> None:
    """Say what is simulated, and measure it rather than assert it."""
    stage.report.heading("1", "The origin it simulates")
    asked = time.perf_counter()
    with urllib.request.urlopen(stage.origin.url(stage.built.names[0])) as answer:
        first_byte_s = time.perf_counter() - asked
        count = len(answer.read())
    rate = count / (time.perf_counter() - asked - first_byte_s)
    stage.report.facts([
        ("address", stage.origin.base),
        ("holds", f"{len(stage.built.names)} shards, {stage.built.samples:,} photographs, {megabytes(stage.built.bytes)}"),
        ("latency", f"{stage.origin.latency_ms:.0f} ms a request (measured: first byte after {first_byte_s * 1e3:.0f} ms)"),
        ("rate", f"{stage.origin.rate_mb:.0f} MB/s a connection (measured: {rate / 1e6:.1f} MB/s)"),
        ("trainer", _trainer_text(stage.scale)),
    ])  # fmt: skip


def _trainer_text(scale: Scale) -> str:
    return f"webdataset, {scale.workers} DataLoader workers, batches of {scale.batch}, an emulated step of {scale.step_ms:.0f} ms"


def side_by_side_act(stage: Stage) -> list[Row]:
    """The same epoch on every way in. Direct is what webdataset does today; local files are as good as it gets."""
    stage.report.heading("2", "One epoch, side by side")
    direct = _row(stage, "direct, pipe:curl", curl(stage.pattern()), "webdataset")
    cold = _row(stage, "through Forebay, cold", curl(stage.pattern()), "forebay", direct)
    warm = _row(stage, "through Forebay, warm", curl(stage.pattern()), "forebay", direct)
    local = _row(stage, "local files", stage.local_pattern(), "webdataset")
    useless = _row(stage, "local files through Forebay", f"file://{stage.local_pattern()}", "forebay", local)
    rows = [direct, cold, warm, local, useless]
    stage.report.rows(rows)
    stage.report.line("[dim]gain: against the row it replaces. Files that are local already gain nothing: Forebay is not for them.[/]")
    return rows


def _row(stage: Stage, name: str, urls: str, through: str, baseline: Row | None = None) -> Row:
    stage.origin.reset()
    with stage.report.working(name) as say:
        epoch = _train(stage, [urls], *stage.scale.trainer_options(through), say=say, name=name)
    counts = stage.origin.counts()
    return Row(name, epoch, counts["bytes"], counts["requests"], baseline)


def _train(stage: Stage, urls: list[str], *options: str, say: Say, name: str, told: Any = None) -> dict[str, Any]:
    def hear(facts: dict[str, Any]) -> None:
        if "samples" in facts:
            say(f"{name}: {facts['samples']:,} samples")
            if told:
                told(facts["samples"])

    return run_trainer(urls, *options, environment=stage.sidecar.environment(), told=hear)


def model_act(stage: Stage) -> dict[str, Any]:
    """A real network instead of the emulated step, decoding every photograph."""
    name = "a small network, one epoch through Forebay"
    with stage.report.working(name) as say:
        options = [*stage.scale.trainer_options("forebay"), "--model"]
        epoch = _train(stage, [curl(stage.pattern())], *options, say=say, name=name)
    stage.report.line(
        f"{name}: loss {_mean(epoch['losses'][:3]):.2f} -> {_mean(epoch['losses'][-3:]):.2f}, "
        f"{epoch['accuracy']:.0%} right (of 10 classes), waited {epoch['waited_s']:.1f} s of {epoch['epoch_s']:.1f}"
    )
    return epoch


def _mean(numbers: list[float]) -> float:
    return sum(numbers) / max(1, len(numbers))


def cut_act(stage: Stage) -> list[dict[str, Any]]:
    """One shard whose body breaks off between two samples, once for each way in."""
    stage.report.heading("3", "The same shard, cut in the middle of its body")
    source = stage.built.directory / stage.built.names[0]
    offset, _ = member_boundary(source, CUT_AT)
    total = samples_in_first_shard(stage)
    os.link(source, stage.built.directory / "cut.tar")
    url = f"{curl(stage.origin.url('cut.tar'))} || true"
    epochs = []
    for name, through in (("pipe:curl … || true", "webdataset"), ("through Forebay", "forebay")):
        stage.origin.reset()
        stage.origin.cut_once("cut.tar", offset)
        with stage.report.working(name) as say:
            options = [*stage.scale.trainer_options(through), "--workers", "1"]
            epoch = _train(stage, [url], *options, say=say, name=name)
        stage.report.line(_verdict(name, epoch, total, f"{stage.origin.counts()['cuts']} cut"))
        epochs.append(epoch)
    return epochs


def samples_in_first_shard(stage: Stage) -> int:
    return len(sample_names(stage.built.directory / stage.built.names[0]))


def _verdict(name: str, epoch: dict[str, Any], total: int, event: str) -> str:
    colour = "green" if epoch["samples"] == total and not epoch["error"] else "red"
    said = epoch["error"] or "no error"
    again = f", {epoch['repeated']} of them twice" if epoch["repeated"] else ""
    return f"{name:<22} {event:<22} trained on [{colour}]{epoch['samples']:,} of {total:,}[/] samples{again}, {said}"


def kill_act(stage: Stage) -> dict[str, Any]:
    """``kill -9`` of the sidecar in mid-epoch, on shards it has never seen; a second later it is started again."""
    stage.report.heading("4", "kill -9 of the sidecar in mid-epoch")
    stage.again("again")
    killed: list[int] = []

    def watch(samples: int) -> None:
        if not killed and samples >= KILL_AT * stage.built.samples:
            killed.append(stage.sidecar.kill())
            time.sleep(RESTART_S)
            stage.sidecar.start()

    name = "one epoch, sidecar killed"
    with stage.report.working(name) as say:
        urls = [curl(stage.pattern("again/"))]
        epoch = _train(stage, urls, *stage.scale.trainer_options("forebay"), say=say, name=name, told=watch)
    event = f"pid {killed[0]} killed" if killed else "[red]not killed[/]"
    stage.report.line(_verdict("through Forebay", epoch, stage.built.samples, event))
    return epoch
