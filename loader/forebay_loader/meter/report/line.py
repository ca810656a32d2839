"""The log line: how long and why a node's training waited. No I/O.

``stall 3.1 % (decode 2.9) | Data (t): 0.021 Batch (t): 0.670, 382.0/s | slowest rank 3 worker 1 shard 00017.tar | …``

Ranks wait for each other, so the line shows the rank that waited most. Data (t) and Batch (t) are OpenCLIP's names: the seconds of a step
inside ``next(loader)``, and of the whole step. The line ends with advice, if there is any (``wire.protocol.verdict``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

from forebay_loader.base.shown_text import size_text
from forebay_loader.meter.report.cores import CoreUse
from forebay_loader.meter.report.node_view import NodeView, SidecarSums, stall_share
from forebay_proxy.wire.protocol.meter import MeterBody
from forebay_proxy.wire.protocol.verdict import FINE, OF_ORIGIN, Levels, shown_cause, verdict

__all__ = ["advice", "log_line", "step_times"]

NAMED = 0.005  # share of the time: a cause with less is not named, and no slowest worker is shown
_MOST_SHARD = 60  # characters


def log_line(view: NodeView, cores: Optional[CoreUse] = None) -> str:
    """The line for ``view``; "" if no rank was measured in it. Each rank was measured for more than 0 s."""
    rank = view.slowest
    if rank is None:
        return ""
    body = view.ranks[rank]
    parts = [*filter(None, [view.unequal]), f"stall {100 * stall_share(body):.1f} %{_causes(body)}", f"{step_times(body)}{_samples(view)}"]
    if stall_share(body) >= NAMED:
        parts += _told("slowest", _slowest(rank, body, len(view.ranks)))
    parts += _told("uneven:", view.uneven)
    parts += _sidecar(view.sidecar, view.seconds)
    parts += [f"skipped {view.skipped}", *_told("batch", _batch(view))]
    return " | ".join([*parts, *filter(None, [advice(view, cores)])])


def step_times(body: MeterBody) -> str:
    """``Data (t): 0.021 Batch (t): 0.670``, means of the interval."""
    steps = max(1, body.steps)
    data_s = min(sum(body.stall_s.values()), body.wall_s)  # a wait that began before the interval is counted in it
    return f"Data (t): {data_s / steps:.3f} Batch (t): {body.wall_s / steps:.3f}"


def _causes(body: MeterBody) -> str:
    whole_s = max(body.wall_s, sum(body.stall_s.values()))
    named = sorted(((seconds, cause) for cause, seconds in body.stall_s.items() if seconds >= NAMED * whole_s), reverse=True)
    return f" ({', '.join(f'{shown_cause(cause)} {100 * seconds / whole_s:.1f}' for seconds, cause in named)})" if named else ""


def _samples(view: NodeView) -> str:
    """Samples a second, of all ranks together."""
    samples = sum(body.samples / body.wall_s for body in view.ranks.values())
    return f", {samples:#.4g}/s" if samples else ""


def _slowest(rank: str, body: MeterBody, ranks: int) -> str:
    name = (body.slowest_shard or "").partition("?")[0].rpartition("/")[2][-_MOST_SHARD:]
    shard = "".join(each if each.isprintable() else "?" for each in name)
    words = [f"rank {rank}"] if ranks > 1 else []
    words += [] if body.slowest_worker is None else [f"worker {body.slowest_worker}"]
    return " ".join([*words, *([f"shard {shard}"] if shard else [])])


def _sidecar(sums: Optional[SidecarSums], seconds: float) -> list[str]:
    if sums is None:
        return ["no sidecar answers: this rank alone"]
    parts = []
    if sums.lead_bytes is not None:
        shards = f"{sums.lead_shards:.0f} shards " if sums.lead_shards else ""
        parts.append(f"lead {shards}{size_text(sums.lead_bytes)}")
    if sums.sent_bytes > 0:
        parts.append(f"hit {100 * sums.hit_bytes / sums.sent_bytes:.0f} %")
    rate = size_text(max(0, sums.origin_bytes) / seconds) if seconds > 0 else "-"
    return [*parts, f"origin {rate}/s, {sums.origin_retries} retries"]


def _batch(view: NodeView) -> str:
    sizes = sorted({body.batch_size for body in view.ranks.values() if body.batch_size is not None})
    return "-".join(map(str, dict.fromkeys((sizes[0], sizes[-1])))) if sizes else ""


def _told(name: str, text: str) -> list[str]:
    return [f"{name} {text}"] if text else []


def advice(view: NodeView, cores: Optional[CoreUse]) -> str:
    """What to do for the slowest rank of ``view``; "" if nothing. ``cores``: their use in the same interval, None if not known.

    Only the sidecar knows why an origin is slow and which other disk there is, so its advice is taken for these causes.
    """
    body = view.ranks.get(view.slowest or "")
    if body is None:
        return ""
    alike = sum(stall_share(each) >= stall_share(body) / 2 for each in view.ranks.values())  # these ranks would share the idle cores
    said = verdict(
        Levels(
            stall_s=body.stall_s,
            wall_s=body.wall_s,
            workers=body.workers,
            function=body.slowest_function or "",
            idle_cores=None if cores is None else cores.idle * cores.count / max(1, alike),
        )
    )
    if view.sidecar is not None and view.sidecar.says[0] in {"origin": OF_ORIGIN, "disk": {"disk"}}.get(said.cause, ()):
        cause, do, line = view.sidecar.says
        said = replace(said, cause=cause, do=do, line=line)
    return "" if said.severity == FINE or not said.do else f"{said.cause}: {said.advice}"
