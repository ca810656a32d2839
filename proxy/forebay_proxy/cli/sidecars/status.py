"""``forebay status``: how the sidecar is, once or until interrupted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

import click

from forebay_proxy.cli.client import locate
from forebay_proxy.cli.options import json_option, url_option
from forebay_proxy.cli.output import is_terminal, many, plain_table, say, say_json
from forebay_proxy.cli.sidecars import watch as watching
from forebay_proxy.core.quantities import format_duration, format_size
from forebay_proxy.telemetry.rank_balance import rank_balance
from forebay_proxy.wire.protocol.verdict import shown_cause

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["status", "status_rows"]


Table = Mapping[str, Any]
Row = tuple[str, ...]


# The metrics' words for how a request was served, as people say it.
_RESULTS = {
    "hit": "from the cache",
    "collapsed": "shared a fetch",
    "partial": "in part from the cache",
    "miss": "fetched",
    "bypass": "not stored",
    "relayed": "in parts, not stored",
}


def status_rows(status: Table) -> list[Row]:
    """(what, how it is), the verdict first."""
    up = format_duration(status["uptime_s"])
    rows = [
        ("sidecar", f"{status['state']}, up {up}, {status['url']}, pid {status['pid']}, {status['forebay']}"),
        *_verdict(status.get("verdict")),
        ("cache", _cache(status["cache"])),
        ("", f"{many(status['cache']['shards'], 'shard')} in {status['cache_dir']}"),
        ("read", _bytes(status["bytes"])),
        *_shared(status.get("shared")),
        ("requests", ", ".join(f"{count} {_RESULTS.get(result, result)}" for result, count in status["requests"].items())),
        ("waited", f"readers {format_duration(status['reader_wait_s'])} in all"),
        ("errors", f"{status['errors']} to readers{', the last ones below' if status.get('recent_errors') else ''}"),
        *_told("log", status.get("log")),
    ]
    rows += [("ranks", f"{each['job']}: {each['unequal']}") for each in status.get("meters", ()) if each.get("unequal")]
    rows += [("ranks", text) for text in _uneven(status.get("meters", ()))]
    rows += [("trouble", text) for text in status.get("troubles", ())]
    for each in status.get("sets", ()):
        rows += [("set", _declared(each)), *(("", line) for line in _failure_lines(each))]
    disk = status["cache"].get("disk_state", "normal")
    if disk != "normal":
        rows.append(("disk", f"{disk}: {status['cache'].get('disk_reason', '')}"))
    rows += [("chosen", text) for text in status.get("chosen", ())]
    return rows + [("notice", text) for text in status.get("notices", ())]


def _verdict(said: Table | None) -> list[Row]:
    """How bad it is, the sentence; what to do; what to type."""
    if said is None:
        return []
    return [("now", f"{_SEVERITY[said['severity']]}{said['sentence']}"), *_told("do", said["do"]), *_told("type", said["line"])]


_SEVERITY = {"fine": "", "look": "LOOK: ", "act": "ACT: "}


def _tables(status: Table, order: int = 0) -> Iterator[list[Row]]:
    """Each with its heading: readers, ranks of training, derived caches, origins, errors and events (newest first), plans.

    ``order``: see ``_ORDERS``.
    """
    readers = sorted(status.get("readers", ()), key=_ORDERS[order % len(_ORDERS)][1])
    yield [("reader", "shard", "position", "waited", "waits now for"), *(
        (each["reader"], each["shard"], _position(each), format_duration(each["waited_s"]), _waiting(each))
        for each in readers
    )]  # fmt: skip
    yield [("rank", "stall", "a step", "batch", "worker", "shard", "skipped"), *map(_rank, status.get("meters", ()))]
    yield [("cache of", "folder", "on disk", "hits", "made", "kept", "dropped", "damaged"), *map(_derived, status.get("derived", ()))]
    yield [("origin", "now", "open", "answers", "throttled", "retries", "last error"), *map(_origin, status.get("origins", ()))]
    yield [("error at", "status", "", "why"), *(
        (time.strftime("%H:%M:%S", time.localtime(each["at"])), each["what"], f"{each['count']} x", each["error"])
        for each in status.get("recent_errors", ())
    )]  # fmt: skip
    yield [("event at", "what"), *(
        (time.strftime("%H:%M:%S", time.localtime(each["at"])), each["what"]) for each in status.get("events", ())
    )]  # fmt: skip
    plans: list[Row] = [("plan of", "set", "epoch", "shard", "rate", "lead", ""), *map(_plan, status.get("plans", ()))]
    more = status.get("plans_total", 0) - len(plans) + 1
    yield [*plans, *([(f"and {more} more", "", "", "", "", "", "")] if more > 0 else [])]


_TABLES = ("readers", "ranks", "derived caches", "origins", "errors", "events", "plans")
_ORDERS: Sequence[tuple[str, Callable[[Table], Any]]] = (  # of the readers
    ("that wait first", lambda each: not each.get("waiting_for")),
    ("longest wait first", lambda each: -each["waited_s"]),
    ("by shard", lambda each: each["shard"]),
)


def _origin(each: Table) -> Row:
    answers = sorted(each["codes_last_minute"].items(), key=lambda one: one[0].startswith("2"))  # the bad ones first: the end may be cut
    codes = ", ".join(f"{count} x {'failed' if code == '0' else code}" for code, count in answers)
    ago = each["last_error_s_ago"]
    return (
        each["origin"], f"{format_size(int(each['rate_bytes_s']))}/s", str(each["in_flight"]), codes or _or_dash(each["last_code"]),
        str(each["throttled"]), str(each["retries"]), "" if ago is None else f"{format_duration(ago)} ago: {each['last_error']}",
    )  # fmt: skip


def _rank(each: Table) -> Row:
    """Of a training process that tells its stalls, in the last minute: their share, and the causes that are a tenth of that at least."""
    sums = each["lately"]
    stall_s, wall_s, steps = sum(sums["stall_s"].values()), sums["wall_s"], sums["steps"]
    causes = sorted(sums["stall_s"].items(), key=lambda cause: -cause[1])
    named = ", ".join(
        f"{shown_cause(cause)} {min(100.0, 100 * seconds / wall_s):.1f} %"
        for cause, seconds in causes
        if seconds and seconds >= stall_s / 10
    )
    return (
        f"{each['job']} {each['rank']}{' (ended)' if each.get('ended') else ''}",
        each.get("silent") or (f"{min(100.0, 100 * stall_s / wall_s):.1f} %{f' ({named})' if named else ''}" if wall_s else "-"),
        f"{wall_s / steps:.3f} s" if steps else "-",
        *(_or_dash(each[name]) for name in ("batch_size", "slowest_worker", "slowest_shard")), str(each["skipped"]),
    )  # fmt: skip


def _derived(each: Table) -> Row:
    """A job's derived caches of one kind. What its kind does not count is "-"."""
    counts = (_or_dash(each.get(name)) for name in ("hits", "made", "kept", "dropped", "damaged"))
    size = f"{format_size(each['bytes'])} of {format_size(each['limit_bytes'])}" if each["folders"] else "-"
    off = f" ({each['off']} x given up)" if each["off"] else ""
    return (f"{each['job']} {each['kind']}{off}", ", ".join(folder["folder"] for folder in each["folders"]), size, *counts)


def _plan(each: Table) -> Row:
    return (
        each["reader"], _or_dash(each["set"]), _or_dash(each["epoch"]), f"{each['position']}/{each['length']}", f"{each['rate']:.2g}/s",
        f"{format_size(each['lead_bytes'])}, {format_duration(each['lead_s'])}", "waiting" if each["waiting"] else "",
    )  # fmt: skip


def _waiting(reader: Table) -> str:
    """Without the origin, with which the shard's name begins; a code stands first, where no narrow column cuts it."""
    origin, colon, why = str(reader.get("waiting_for", "")).partition(": ")
    why = why.removeprefix("the origin answered ")
    return why if colon and reader["shard"].startswith(origin) else origin + colon + why


def _position(reader: Table) -> str:
    position, length = format_size(reader["position_bytes"]), reader["length_bytes"]
    return position if length is None else f"{position} of {format_size(length)}"


def _uneven(meters: Sequence[Table]) -> list[str]:
    """A line for each job whose ranks were not evenly loaded in the last minute: the most of a figure over its mean, and whose it is."""
    rows = dict[str, list[Table]]()
    for each in meters:
        if each["lately"]["wall_s"] and not each.get("ended") and not each.get("silent"):
            rows.setdefault(each["job"], []).append(each)
    balances = {job: rank_balance(ranks) for job, ranks in rows.items()}
    return [f"{job}: uneven, {balance}" for job, balance in balances.items() if balance and balance.is_uneven]


def _declared(each: Table) -> str:
    opened = "".join(f", {job or 'readers without a name'}: {count} opened in this epoch" for job, count in each["opened"].items())
    complete, stored = each.get("complete"), each.get("stored_bytes")
    here = "" if complete is None or stored is None else f", {complete} of them here ({format_size(stored)})"
    return f"{each['set']}, {each['shards']} shards{here}, {each['state']}{opened}"


def _failure_lines(declared: Table) -> list[str]:
    """What of a declared set cannot be fetched, a line a cause, with what to do."""
    lines = []
    for each in declared.get("failures", ()):
        which = each["shard"] if each["count"] == 1 else f"{each['count']} shards ({each['shard']} and others)"
        lines.append("; ".join(text for text in (f"{which} cannot be fetched: {each['cause']}", each["next_step"]) if text))
    return lines


def _cache(cache: Table) -> str:
    used = cache["stored_bytes"] + cache["reserved_bytes"] + cache["doomed_bytes"] + cache["overhead_bytes"]
    capacity = cache["effective_bytes"]
    share = f" ({100 * used / capacity:.0f} %)" if capacity else ""
    text = f"{format_size(used)} of {format_size(capacity)}{share}"
    text += f", {cache['in_flight']} segments in flight, {format_size(cache['leased_bytes'])} in use"
    if cache.get("descriptors"):
        text += f", {format_size(cache['descriptor_bytes'])} of it by {cache['descriptors']} descriptors"
        if cache.get("lingering"):
            text += f" ({cache['lingering']} by views that outlived their reader)"
    if capacity < cache["capacity_bytes"]:
        text += f"; asked for {format_size(cache['capacity_bytes'])}, but the disk has no more"
    return text


def _bytes(counted: Table) -> str:
    share = f" ({100 * counted['hit'] / counted['sent']:.0f} %)" if counted["sent"] else ""
    return (
        f"{format_size(counted['sent'])}, {format_size(counted['hit'])} hit{share}, "
        f"{format_size(counted['origin'])} from origins, {format_size(counted['saved'])} saved"
        + (f", {format_size(counted['opened'])} opened to read samples of it" if counted.get("opened") else "")
    )


def _shared(shared: Table | None) -> list[Row]:
    if shared is None:
        return []
    text = f"{shared['place']}: {format_size(shared['read_bytes'])} read, {format_size(shared['written_bytes'])} written; of its shards "
    text += f"{shared['hits']} were there, {shared['waited']} were waited for, {shared['fetched']} fetched for all"
    text += f"; {many(shared['failures'], 'failure')}" if shared["failures"] else ""
    return [("shared tier", text), *(("", f"not used for a while: {cause}") for cause in shared["troubles"])]


def _told(name: str, text: str | None) -> list[Row]:
    return [(name, text)] if text else []


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)


_ROWS_SHOWN = 20  # a screen; a pipe and --json have them all


@click.command()
@json_option
@click.option("--watch", is_flag=True, help="Show it again every interval until q or Ctrl-C: what fits the screen. Into a pipe: once.")
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=1.0, show_default=True, metavar="SECONDS", help="How often, with --watch."
)
@url_option
def status(as_json: bool, watch: bool, interval: float, url: str | None) -> int:
    """Show how the running sidecar is: what training and readers wait for, room, hits, origins, the last errors, and which reader reads
    which shard.

    \b
    Examples:
      forebay status
      forebay status --watch
      forebay status --json | jq .cache
    """
    sidecar = locate(url, os.environ)
    if watch and not as_json:
        if is_terminal() and os.environ.get("TERM") not in ("dumb", "unknown"):  # those cannot draw over what they have
            watching.watch(sidecar.status, _drawn, interval)
        else:  # a still picture
            for text in _drawn(sidecar.status(), *get_terminal_size()):
                say(text.plain)
        return 0
    while True:
        found = sidecar.status()
        if as_json:
            say_json(found)
        else:
            for line in _lines(found):
                say(line)
        if not watch:
            return 0
        time.sleep(interval)


def _drawn(found: Table, width: int, height: int, order: int | None = None) -> list[Text]:
    """``order`` of the readers; None: nobody is there to press keys."""
    up = format_duration(found["uptime_s"])
    keys = "" if order is None else f"   q: quit, s: readers {_ORDERS[order % len(_ORDERS)][0]}"
    head = f"{found['state']}, up {up}, {found['url']}{keys}"
    totals = [
        f"{name:<8}  {text}" for name, text in status_rows(found) if name in ("cache", "read", "errors", "trouble", "disk", "shared tier")
    ]
    tables = list(zip(_TABLES, _tables(found, order or 0), strict=True))
    return watching.screen(found.get("verdict"), head, tables, totals, width, height)


def _lines(found: dict[str, Any]) -> list[str]:
    """All of it; for who watches a terminal, the first rows of each table."""
    lines = plain_table(status_rows(found))
    for rows in _tables(found):
        shown = rows[: _ROWS_SHOWN + 1] if is_terminal() else rows
        lines += ["", *plain_table(shown)] if len(shown) > 1 else []
        lines += [f"and {len(rows) - len(shown)} more"] if len(rows) > len(shown) else []
    return lines
