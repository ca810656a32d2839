"""A sidecar's status in words a person understands at three in the morning. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay_proxy.sizes import format_duration, format_size

__all__ = ["plan_rows", "reader_rows", "status_rows"]

Table = Mapping[str, Any]
Row = tuple[str, ...]


def status_rows(status: Table) -> list[Row]:
    """(what, how it is), the verdict first."""
    rows = [
        (
            "sidecar",
            f"{status['state']}, up {format_duration(status['uptime_s'])}, {status['url']}, pid {status['pid']}, {status['forebay']}",
        ),
        ("cache", _cache(status["cache"])),
        ("", f"{status['cache']['shards']} shards in {status['cache_dir']}"),
        ("read", _bytes(status["bytes"])),
        *_regret(status["bytes"]),
        ("requests", ", ".join(f"{count} {result}" for result, count in status["requests"].items())),
        ("waited", f"readers {format_duration(status['reader_wait_s'])} in all"),
        ("errors", str(status["errors"])),
    ]
    rows += [("set", _declared(each)) for each in status.get("sets", ())]
    disk = status["cache"].get("disk_state", "normal")
    if disk != "normal":
        rows.append(("disk", f"{disk}: {status['cache'].get('disk_reason', '')}"))
    return rows + [("notice", text) for text in status.get("notices", ())]


def reader_rows(status: Table) -> list[Row]:
    """One row a reader that is in a shard now, under a heading; empty when nobody reads."""
    rows = [
        (each["reader"], each["shard"], _position(each["position_bytes"], each["length_bytes"]), format_duration(each["waited_s"]))
        for each in status.get("readers", ())
    ]
    return [("reader", "shard", "position", "waited"), *rows] if rows else []


def plan_rows(status: Table) -> list[Row]:
    """One row an announced plan, under a heading; empty when there is none."""
    rows = [
        (
            each["reader"],
            _or_dash(each["set"]),
            _or_dash(each["epoch"]),
            f"{each['position']}/{each['length']}",
            f"{each['rate']:.2g}/s",
            f"{format_size(each['lead_bytes'])}, {format_duration(each['lead_s'])}",
            "waiting" if each["waiting"] else "",
        )
        for each in status.get("plans", ())
    ]
    more = status.get("plans_total", len(rows)) - len(rows)
    unseen = [(f"and {more} more", "", "", "", "", "", "")] if more > 0 else []
    return [("plan of", "set", "epoch", "shard", "rate", "lead", ""), *rows, *unseen] if rows else []


def _declared(each: Table) -> str:
    opened = "".join(f", {job or 'readers without a name'}: {count} opened in this epoch" for job, count in each["opened"].items())
    complete, stored = each.get("complete"), each.get("stored_bytes")
    here = "" if complete is None or stored is None else f", {complete} of them here ({format_size(stored)})"
    return f"{each['set']}, {each['shards']} shards{here}, {each['state']}{opened}"


def _cache(cache: Table) -> str:
    used = cache["stored_bytes"] + cache["reserved_bytes"] + cache["doomed_bytes"] + cache["overhead_bytes"]
    capacity = cache["effective_bytes"]
    share = f" ({100 * used / capacity:.0f} %)" if capacity else ""
    text = f"{format_size(used)} of {format_size(capacity)}{share}"
    text += f", {cache['in_flight']} segments in flight, {format_size(cache['leased_bytes'])} leased"
    if cache.get("descriptors"):
        text += f", {format_size(cache['descriptor_bytes'])} of it by {cache['descriptors']} descriptors"
    if capacity < cache["capacity_bytes"]:
        text += f"; asked for {format_size(cache['capacity_bytes'])}, but the disk has no more"
    return text


def _bytes(counted: Table) -> str:
    share = f" ({100 * counted['hit'] / counted['sent']:.0f} %)" if counted["sent"] else ""
    return (
        f"{format_size(counted['sent'])}, {format_size(counted['hit'])} hit{share}, "
        f"{format_size(counted['origin'])} from origins, {format_size(counted['saved'])} saved"
    )


def _regret(counted: Table) -> list[Row]:
    """How far from the best that was possible, in one number; nothing before the first reading has ended."""
    optimal = counted.get("optimal", 0)
    ratio = f"{counted['origin'] / optimal:.3f}" if optimal else ""
    return [("regret", f"origin bytes {ratio} x the least possible, what is read ahead included")] if optimal else []


def _position(position: int, length: int | None) -> str:
    return format_size(position) if length is None else f"{format_size(position)} of {format_size(length)}"


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
