"""What a command's run cost and saved: two answers of ``/v1/status`` and their difference, in one line. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay_proxy.core.quantities import format_duration, format_size

__all__ = ["has_read", "summary"]

Table = Mapping[str, Any]
Figures = dict[str, float]

_LOOK = "'forebay check URL' asks for one and says what becomes of it"
_ANONYMOUS = "programs that name no reader (curl, say), this command's or others'"
_RESTARTED = "the sidecar was restarted, earlier figures are lost"


def summary(before: Table, after: Table, job: str) -> str:
    """One line: hit and origin bytes, reader wait and errors of the command whose readers name ``job``.

    A sidecar has other users. Programs that name no reader (curl by GOPEN_REWRITE), which may be the command's own or anybody's, are told
    apart; other jobs are not told of. A fetch serves every reader that waits for it, so origin bytes are the command's only
    where no other job read.
    """
    restarted = before.get("instance") != after.get("instance")
    before = {} if restarted else before
    then, now = before.get("jobs", {}), after.get("jobs", {})
    spent = _difference(then.get(job, {}), now.get(job, {}))
    anonymous = _difference(before.get("anonymous", {}), after.get("anonymous", {}))
    others = any(_used(_difference(then.get(name, {}), counters)) for name, counters in now.items() if name != job)
    origin = max(0, after.get("bytes", {}).get("origin", 0) - before.get("bytes", {}).get("origin", 0))
    parts = [*_parts(spent, anonymous, others, origin), *_not_stored(spent, anonymous, after), *_no_tars(spent, anonymous, after)]
    return "; ".join([*parts, *([_RESTARTED] if restarted else [])])


def has_read(after: Table, job: str) -> bool:
    """Whether a reader that names ``job`` asked the sidecar for anything."""
    return _used(_figures(after.get("jobs", {}).get(job, {})))


def _parts(spent: Figures, anonymous: Figures, others: bool, origin: float) -> list[str]:
    if not others and not _used(anonymous):
        return [_told(spent, origin)] if _used(spent) else [f"no shard was read through Forebay; {_LOOK}"]
    if not others and not _used(spent):
        return [_told(anonymous, origin), f"all of it by {_ANONYMOUS}"]
    parts = [_told(spent, None) if _used(spent) else f"no reader of this command read through Forebay; {_LOOK}"]
    if _used(anonymous):
        parts.append(f"{_ANONYMOUS}: {_told(anonymous, None)}")
    return [*parts, f"{format_size(origin)} from origins for all readers of the sidecar"]


def _not_stored(spent: Figures, anonymous: Figures, after: Table) -> list[str]:
    """Requests that found no room (they cost a fetch each time), and what the cache suffers from."""
    count = int(spent["bypass"] + anonymous["bypass"])
    return [*([f"{count} request{'s' if count > 1 else ''} not stored"] if count else []), *after.get("troubles", ())]


def _no_tars(spent: Figures, anonymous: Figures, after: Table) -> list[str]:
    """What was called a tar and is none: a trainer sees no more of a login page than "truncated header"."""
    count = int(spent["no_tars"] + anonymous["no_tars"])
    if not count:
        return []
    said = next((row["error"] for row in after.get("recent_errors", ()) if row["what"] == "no tar"), "'forebay status' tells which")
    return [f"{count} reading{'s' if count > 1 else ''} of what is no tar, the last: {said}"]


def _told(spent: Figures, origin: float | None) -> str:
    sent, hit = spent["sent"], spent["hit"]
    share = f" ({100 * hit / sent:.0f} %)" if sent else ""
    fetched = "" if origin is None else f", {format_size(origin)} from origins, {format_size(max(0, sent - origin))} saved"
    opened = f", {format_size(spent['opened'])} opened to read samples of it" if spent["opened"] else ""
    return (
        f"{format_size(sent)} read, {format_size(hit)} hit{share}{fetched}{opened}; "
        f"readers waited {format_duration(spent['wait_s'])}; {spent['errors']:.0f} error{'' if spent['errors'] == 1 else 's'}"
    )


def _used(spent: Figures) -> bool:
    return bool(spent["requests"] or spent["errors"])


def _difference(before: Table, after: Table) -> Figures:
    now, then = _figures(after), _figures(before)
    return {name: max(0, now[name] - then[name]) for name in now}


def _figures(counters: Table) -> Figures:
    counted = counters.get("bytes", {})
    return {
        "requests": sum(counters.get("requests", {}).values()),
        "bypass": counters.get("requests", {}).get("bypass", 0),
        **{name: counted.get(name, 0) for name in ("sent", "hit", "opened")},
        "wait_s": counters.get("reader_wait_s", 0.0),
        "errors": counters.get("errors", 0),
        "no_tars": counters.get("no_tars", 0),
    }
