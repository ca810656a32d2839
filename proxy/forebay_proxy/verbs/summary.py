"""What a command's run cost and saved: two answers of ``/v1/status`` and their difference, in one line. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forebay_proxy.sizes import format_duration, format_size

__all__ = ["summary"]

Table = Mapping[str, Any]


def summary(before: Table, after: Table) -> str:
    """One line: hit, origin and saved bytes, reader wait, errors of the whole sidecar while the command ran."""
    restarted = before.get("instance") != after.get("instance")
    spent = _difference({} if restarted else before, after)
    if not spent["requests"]:
        return "no shard was read through Forebay; 'forebay env --check URL' says what becomes of a URL"
    sent, hit = spent["sent"], spent["hit"]
    share = f" ({100 * hit / sent:.0f} %)" if sent else ""
    since = "; the sidecar was restarted, earlier figures are lost" if restarted else ""
    return (
        f"{format_size(sent)} read, {format_size(hit)} hit{share}, {format_size(spent['origin'])} from origins, "
        f"{format_size(spent['saved'])} saved; readers waited {format_duration(spent['wait_s'])}; {spent['errors']:.0f} errors{since}"
    )


def _difference(before: Table, after: Table) -> dict[str, float]:
    now, then = _figures(after), _figures(before)
    return {name: max(0, now[name] - then[name]) for name in now}


def _figures(status: Table) -> dict[str, float]:
    counted = status.get("bytes", {})
    return {
        "requests": sum(status.get("requests", {}).values()),
        **{name: counted.get(name, 0) for name in ("sent", "hit", "origin", "saved")},
        "wait_s": status.get("reader_wait_s", 0.0),
        "errors": status.get("errors", 0),
    }
