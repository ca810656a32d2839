"""``fb.status()``: how the sidecar is, in one line; never an error, since it is what people ask when something is wrong."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, Mapping, Optional

from forebay_loader.base.counters import COUNTS
from forebay_loader.base.shown_text import size_text
from forebay_loader.transport.body import Unanswered
from forebay_loader.transport.endpoint import find_endpoint
from forebay_loader.transport.http import ask_status

__all__ = ["NO_SIDECAR", "Status", "status"]

ANSWER_S = 5.0  # a live sidecar answers in milliseconds
NO_SIDECAR = "start one with 'forebay serve', or use 'with fb.sidecar():'"


@dataclass(frozen=True)
class Status:
    """The state of a sidecar, as ``fb.status()`` found it. ``str()`` is one line. It is false if there is no sidecar. A field is None if it
    is not known.

    - ``where``: the sidecar's address, "" if nothing names one.
    - ``cache_used_bytes``, ``cache_limit_bytes``: what the cache takes and may take, in bytes.
    - ``hit_ratio``: bytes that came from the cache, as a share of all bytes sent, 0 to 1.
    - ``lead_s``: how many seconds the prefetch is ahead of the reader that needs it most: of this job, else of any job.
    - ``readers``: how many shards are being read now.
    - ``now``: what readers wait for, or that they do not.
    - ``trouble``: what a person should look into, a text each.
    """

    found: bool
    where: str = ""
    state: str = ""
    cache_used_bytes: Optional[int] = None
    cache_limit_bytes: Optional[int] = None
    hit_ratio: Optional[float] = None
    lead_s: Optional[float] = None
    readers: int = 0
    trouble: "tuple[str, ...]" = ()
    now: str = ""

    def __bool__(self) -> bool:
        return self.found

    def __str__(self) -> str:
        if not self.found:
            return "; ".join(self.trouble)
        parts = [f"sidecar {self.where} {self.state}", _cache(self.cache_used_bytes, self.cache_limit_bytes)]
        parts.append("nothing read yet" if self.hit_ratio is None else f"{100 * self.hit_ratio:.0f} % hit")
        parts.append("no plan" if self.lead_s is None else f"lead {self.lead_s:.1f} s")
        parts.append(f"{self.readers} reader{'' if self.readers == 1 else 's'}")
        return "; ".join([", ".join(parts), *([text for text in (self.now, *self.trouble) if text] or ["no trouble"])])


def status(environ: Optional[Mapping[str, str]] = None) -> Status:
    """The state of the sidecar that this process would read through. It never raises, and waits for an answer up to 5 s.

    Args:
        environ: The variables that name the sidecar. The default is those of this process.

    Returns:
        What was found. ``str()`` of it is one line, and it is false if there is no sidecar.

    Examples:
        >>> if not fb.status({"FOREBAY_URL": "http://127.0.0.1:1"}):
        ...     print("no sidecar")
        no sidecar
    """
    environ = os.environ if environ is None else environ
    endpoint = find_endpoint(environ)
    if endpoint is None:
        named = environ.get("FOREBAY_URL", "")
        cause = (
            "FOREBAY_URL is no address such as http://127.0.0.1:7070"
            if named
            else f"no sidecar runs for this user on this node; {NO_SIDECAR}"
        )
        return Status(False, trouble=(cause, *_own_trouble()))
    try:
        return _read(str(endpoint), ask_status(endpoint, ANSWER_S), environ.get("FOREBAY_JOB", ""))
    except Unanswered as error:
        return Status(False, str(endpoint), trouble=(f"no sidecar answers: {error}; {NO_SIDECAR}", *_own_trouble()))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Status(False, str(endpoint), trouble=(f"what answers at {endpoint} is no sidecar", *_own_trouble()))


def _read(where: str, table: "dict[str, Any]", job: str) -> Status:
    cache, counted = table["cache"], table["bytes"]
    used = sum(int(cache[name]) for name in ("stored_bytes", "reserved_bytes", "doomed_bytes", "overhead_bytes"))
    leads = table.get("leads", {})
    mine = leads.get(job)
    seconds = [float(lead["seconds"]) for lead in ([mine] if mine else leads.values())]
    return Status(
        True,
        where,
        str(table["state"]),
        used,
        int(cache["effective_bytes"]),
        counted["hit"] / counted["sent"] if counted["sent"] else None,
        min(seconds) if seconds else None,
        len(table.get("readers", ())),
        (*_its_trouble(table, cache), *_own_trouble()),
        str((table.get("verdict") or {}).get("sentence", "")),
    )


def _its_trouble(table: "dict[str, Any]", cache: "dict[str, Any]") -> "list[str]":
    found = []
    if cache.get("disk_state", "normal") != "normal":
        found.append(f"disk {cache['disk_state']}: {cache.get('disk_reason', '')}")
    found += [str(text) for text in table.get("troubles", ())]
    if count := int(table.get("errors") or 0):
        found.append(f"{count} error{'' if count == 1 else 's'} since it started, {_last_error(table)}")
    return found


def _last_error(table: "dict[str, Any]") -> str:
    last = next(iter(table.get("recent_errors") or ()), None)
    return "see its log" if last is None else f"the last: {last['error']}"


def _own_trouble() -> "list[str]":
    lost = COUNTS.snapshot()["fallback_total"]
    return [f"{lost} shards of this process went on without the sidecar"] if lost else []


def _cache(used: Optional[int], limit: Optional[int]) -> str:
    return f"cache {size_text(used or 0)} of {size_text(limit or 0)}"
