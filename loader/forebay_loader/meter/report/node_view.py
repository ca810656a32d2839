"""The input of the log line: the ranks of this node and their sidecar, over one interval. No I/O.

``GET /v1/meter/{job}`` returns sums; the line shows the difference to the previous ones. A new or restarted rank or sidecar counts from its
own start.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Mapping, Optional, Tuple

from forebay_proxy.wire.protocol.meter import CAUSES, MeterBody

__all__ = ["NodeSums", "NodeView", "SidecarSums", "read_node"]

UNEVEN = 1.05  # times the mean; ranks with equal steps differ by less than a percent
_SUMS = ("sent_bytes", "hit_bytes", "origin_bytes", "origin_retries")
FEW_STEPS = 2  # the steps that an interval may gain or lose at its ends


@dataclass(frozen=True)
class SidecarSums:
    """Sums of the sidecar for this job (``origin_*``: for all jobs), and how far it is ahead of the job's readers (None: no plan).

    ``says``: the cause in its verdict, what to do, and the setting to use.
    """

    instance: str = ""
    sent_bytes: int = 0
    hit_bytes: int = 0
    origin_bytes: int = 0
    origin_retries: int = 0
    lead_shards: Optional[float] = None
    lead_bytes: Optional[int] = None
    says: Tuple[str, str, str] = ("", "", "")

    def since(self, earlier: Optional[SidecarSums]) -> SidecarSums:
        """The difference to ``earlier``, if that is of the same sidecar."""
        if earlier is None or earlier.instance != self.instance:
            return self
        return replace(self, **{name: getattr(self, name) - getattr(earlier, name) for name in _SUMS})


@dataclass(frozen=True)
class NodeSums:
    """The totals of the processes of this node, by name (``job/rank/main/opener``), and of the sidecar; None if none answers.

    ``skipped`` includes processes of earlier sums. ``unequal``: the sidecar's sentence about processes that seem to wait for ranks without
    further batches.
    """

    ranks: Mapping[str, MeterBody]
    sidecar: Optional[SidecarSums] = None
    skipped: Mapping[str, int] = field(default_factory=dict)
    unequal: Mapping[str, str] = field(default_factory=dict)

    def after(self, earlier: NodeSums) -> NodeSums:
        """Add the skips of processes that only ``earlier`` has: a process that no longer reports has skipped them nevertheless."""
        known = {**{name: body.skipped for name, body in earlier.ranks.items()}, **earlier.skipped}
        return replace(self, skipped={**known, **{name: max(known.get(name, 0), body.skipped) for name, body in self.ranks.items()}})

    def since(self, earlier: NodeSums, seconds: float) -> NodeView:
        """The difference to ``earlier`` over ``seconds``. Of one rank's processes, as after a restart, the last one counts. Ranks without
        news are left out.
        """
        found: dict[str, MeterBody] = {}
        for name, body in self.ranks.items():
            grown = body.since(earlier.ranks.get(name))
            if grown.wall_s > 0:
                found[name.split("/")[1]] = grown
        skipped = sum(self.after(earlier).skipped.values())
        sidecar = self.sidecar and self.sidecar.since(earlier.sidecar)
        return NodeView(found, seconds, skipped, sidecar, next(iter(self.unequal.values()), ""))


@dataclass(frozen=True)
class NodeView:
    """What was added in ``seconds``, by rank and by the sidecar. ``skipped`` is the total of all ranks so far.

    ``unequal``: which rank has ended and which one waits for it; "" if none does.
    """

    ranks: Mapping[str, MeterBody] = field(default_factory=dict)
    seconds: float = 0.0
    skipped: int = 0
    sidecar: Optional[SidecarSums] = None
    unequal: str = ""

    @property
    def slowest(self) -> Optional[str]:
        """The rank that waited for the largest share of its time; None without ranks."""
        return max(self.ranks, key=lambda rank: stall_share(self.ranks[rank]), default=None)

    @property
    def uneven(self) -> str:
        """By how much the fastest rank exceeds the mean of samples or steps a second, and which rank it is; "" if ranks are even.

        Ranks report at different moments, so rates are of each rank's own time, and a difference of a few steps is ignored.
        """
        said = []
        for figure, least in (("samples", max([body.batch_size or 0 for body in self.ranks.values()], default=0)), ("steps", 1)):
            rates = {rank: getattr(body, figure) / body.wall_s for rank, body in self.ranks.items() if body.wall_s > 0}
            if len(rates) < 2 or not any(rates.values()):
                continue
            most = max(rates, key=lambda rank: rates[rank])
            mean = sum(rates.values()) / len(rates)
            if rates[most] >= UNEVEN * mean and (rates[most] - mean) * self.ranks[most].wall_s > FEW_STEPS * least:
                said.append(f"{figure} {rates[most] / mean:.2f} x the mean on rank {most}")
        return ", ".join(said)


def stall_share(body: MeterBody) -> float:
    """The share of its time that a rank waited, 0 to 1."""
    return min(1.0, sum(body.stall_s.values()) / body.wall_s) if body.wall_s > 0 else 0.0


def read_node(page: Any) -> NodeSums:
    """Parse the answer to ``GET /v1/meter/{job}``. Raises ``ValueError``, ``TypeError``, ``KeyError`` or ``AttributeError`` for anything
    else.
    """
    told = page["sidecar"]
    shards, ahead = told["lead_shards"], told["lead_bytes"]
    said = page.get("verdict") or {}  # an older sidecar has none
    sidecar = SidecarSums(
        str(page["instance"]),
        **{name: int(told[name]) for name in _SUMS},
        lead_shards=None if shards is None else float(shards),
        lead_bytes=None if ahead is None else int(ahead),
        says=(str(said.get("cause", "")), str(said.get("do", "")), str(said.get("line", ""))),
    )
    ranks = page["ranks"]
    unequal = {str(row["reader"]): str(row["unequal"]) for row in ranks if row.get("unequal")}
    return NodeSums({str(row["reader"]): _rank(row) for row in ranks}, sidecar, unequal=unequal)


def _rank(row: Any) -> MeterBody:
    shard = row["slowest_shard"]
    found: dict[str, Any] = {name: int(row[name]) for name in ("steps", "samples", "skipped")}
    found |= {name: None if row[name] is None else int(row[name]) for name in ("batch_size", "workers", "slowest_worker")}
    for name in ("stall_s", "reader_wait_s"):
        found[name] = {cause: float(row[name].get(cause, 0.0)) for cause in CAUSES}
    return MeterBody(wall_s=float(row["wall_s"]), slowest_shard=None if shard is None else str(shard), **found)
