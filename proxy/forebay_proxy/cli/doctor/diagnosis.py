"""What ``forebay doctor`` found, for a person and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from forebay_proxy.cli.doctor.epoch_shares import EpochShare, Readers
from forebay_proxy.cli.doctor.rules import Level, RuleFinding, SetFacts
from forebay_proxy.cli.output import many, say
from forebay_proxy.cli.tables import show_table, wrapped

__all__ = ["diagnosis_json", "show_diagnosis"]


def show_diagnosis(found: Sequence[RuleFinding], shares: Sequence[EpochShare]) -> None:
    """A row a rule, what to do under it; then the ways of sharing out; the verdict last."""
    rows = [("", "", "")]
    for one in found:
        rows.append((one.level.value, one.rule, one.text))
        if one.next_step:
            rows.append(("", "", f"-> {one.next_step}"))
    show_table(rows)
    if shares:
        say("")
        show_table([("an epoch, shared out by", "steps a rank", "lost", "twice", "lost if batches are full"), *map(_row, shares)])
        for note in dict.fromkeys(share.note for share in shares):
            for line in wrapped(f"{' and '.join(share.way for share in shares if share.note == note)}: {note}"):
                say(line)
    say("")
    say(_verdict(found))


def _row(share: EpochShare) -> tuple[str, ...]:
    steps = f"{share.least_steps:,}" if share.least_steps == share.most_steps else f"{share.least_steps:,} to {share.most_steps:,}"
    return share.way, steps, f"{share.lost:,}", f"{share.repeated:,}", f"{share.lost_full:,}"


def _verdict(found: Sequence[RuleFinding]) -> str:
    levels = [one.level for one in found]
    parts = []
    if faults := levels.count(Level.FAULT):
        parts.append(f"{many(faults, 'fault')} to mend before the run")
    if advice := levels.count(Level.ADVICE):
        parts.append(f"{many(advice, 'thing')} that could be better")
    if unknown := levels.count(Level.UNKNOWN):
        parts.append(f"{many(unknown, 'thing')} not known")
    return "; ".join(parts) or "nothing to mend"


def diagnosis_json(facts: SetFacts, readers: Readers, found: Sequence[RuleFinding], shares: Sequence[EpochShare]) -> dict[str, Any]:
    """All figures; ``level`` of a rule is ok, advice, fault or not known."""
    known = facts.known
    return {
        "shards": len(facts.names), "ranks": readers.ranks, "workers": readers.workers, "batch": readers.batch,
        "counted": len(known), "counted_by": facts.counted_by, "samples": sum(facts.all_counts),
        "least_samples": min(known, default=None), "most_samples": max(known, default=None),
        "shard_bytes": {"least": min(facts.lengths, default=None), "most": max(facts.lengths, default=None), "asked": len(facts.lengths)},
        "total_bytes": facts.total_bytes, "cache_bytes": facts.cache_bytes,
        "rules": [{**asdict(one), "level": one.level.value} for one in found],
        "ways": [asdict(share) for share in shares],
    }  # fmt: skip
