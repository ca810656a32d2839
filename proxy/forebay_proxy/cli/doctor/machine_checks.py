"""What of this machine, its environment and its sidecar stands in the way. Each check gives a finding with its figures."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from forebay_proxy.cli.client import SidecarHung, locate
from forebay_proxy.cli.doctor.set_rules import Level, RuleFinding
from forebay_proxy.cli.run.env import traps
from forebay_proxy.core.errors import ForebayError
from forebay_proxy.core.quantities import format_duration, format_size
from forebay_proxy.core.shard import Shard
from forebay_proxy.node.cache_location import file_system_type, is_network, read_mounts

__all__ = ["environment_findings", "origin_findings", "sidecar_findings"]

Table = Mapping[str, Any]

_OURS = ("127.0.0.1", "localhost")
_PROXIES = ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY")
_TRIED_BYTES = 64 << 20  # beyond what a disk's own memory takes in silence
SLOW_DISK_BYTES_S = 100e6  # below it the disk is slower than one connection of an object store
FULL = 0.95
SKEW_S = 60.0  # signatures and TLS bear minutes; a minute says that nobody sets this clock
SLOW_FIRST_BYTE_S = 0.5


def environment_findings(environ: Mapping[str, str]) -> Iterator[RuleFinding]:
    """Of the shell that training will be started in."""
    proxy = next((f"{name}={environ[name].rpartition('@')[2]}" for name in _PROXIES if environ.get(name)), "")
    spared = {part.strip() for name in ("no_proxy", "NO_PROXY") for part in environ.get(name, "").split(",")}
    if proxy and not ({"*", "127.0.0.1"} & spared):
        step = f"export NO_PROXY={','.join(dict.fromkeys([*sorted(spared - {''}), *_OURS]))} no_proxy=$NO_PROXY"
        text = f"{proxy} takes requests for 127.0.0.1 too: curl sends those for the sidecar to the proxy"
        yield RuleFinding("proxy", Level.FAULT, text, f"{step}   (forebay run and forebay env set it by themselves)")
    elif proxy:
        yield RuleFinding("proxy", Level.OK, f"{proxy}, and 127.0.0.1 is spared")
    for text in traps(environ):
        cause, _, step = text.partition("; ")
        yield RuleFinding("environment", Level.FAULT if "WDS_SECURE" in cause else Level.ADVICE, cause, step)
    address = environ.get("FOREBAY_URL", "")
    if address and not address.startswith(("http://", "unix:")):
        yield RuleFinding("environment", Level.FAULT, "FOREBAY_URL is no address such as http://127.0.0.1:7070", "unset FOREBAY_URL")


def sidecar_findings(url: str | None, environ: Mapping[str, str]) -> tuple[list[RuleFinding], Table | None]:
    """Of the running sidecar, and its status; None where none answers."""
    try:
        status = locate(url, environ).status()
    except ForebayError as error:
        level = Level.FAULT if isinstance(error, SidecarHung) else Level.ADVICE
        return [RuleFinding("sidecar", level, str(error), error.next_step or "forebay serve, or forebay run")], None
    return [*_of_status(status), *_of_disk(status)], status


def _of_status(status: Table) -> Iterator[RuleFinding]:
    up = format_duration(status["uptime_s"])
    yield RuleFinding("sidecar", Level.OK, f"{status['state']} at {status['url']}, pid {status['pid']}, up {up}, {status['forebay']}")
    said = status.get("verdict") or {}
    if said.get("sentence"):
        level = {"fine": Level.OK, "look": Level.ADVICE}.get(said.get("severity", ""), Level.FAULT)
        step = "; ".join(text for text in (said.get("do", ""), said.get("line", "")) if text)
        yield RuleFinding("verdict", level, said["sentence"], step)
    for text in status.get("troubles", ()):
        yield RuleFinding("trouble", Level.ADVICE, text)
    shared = status.get("shared") or {}
    for text in shared.get("troubles", ()):
        yield RuleFinding("shared tier", Level.ADVICE, f"{shared['place']}: {text}", "docs/shared-tier.md says what each trouble means")
    if count := status.get("errors"):
        last = next((str(each["error"]) for each in status.get("recent_errors", ())), "see its log")
        yield RuleFinding("errors", Level.ADVICE, f"{count} since it started, the last: {last}", "forebay status shows the last ten")


def _of_disk(status: Table) -> Iterator[RuleFinding]:
    """The cache's file system, tried beside the cache: nothing is written within its bound."""
    cache, place = status["cache"], Path(str(status["cache_dir"]))
    asked, effective = cache["capacity_bytes"], cache["effective_bytes"]
    used = sum(cache[f"{name}_bytes"] for name in ("stored", "reserved", "doomed", "overhead"))
    text = f"{format_size(used)} of {format_size(effective)} used"
    if effective < FULL * asked:
        text += f"; {format_size(asked)} were asked for, and the disk has no more"
        yield RuleFinding("cache size", Level.ADVICE, text, "make room on that disk, or forebay serve --cache-dir ON_ANOTHER_DISK")
    else:
        yield RuleFinding("cache size", Level.OK, text)
    try:
        kind = file_system_type(place, read_mounts())
        if is_network(kind):
            step = "forebay serve --cache-dir ON_A_LOCAL_DISK"
            yield RuleFinding("cache disk", Level.ADVICE, f"{place} is on a network file system ({kind})", step)
        written, read = _tried_bytes_s(place.parent)
    except OSError as error:
        step = "make room there" if error.errno == errno.ENOSPC else "run this where the sidecar runs, as its user"
        yield RuleFinding("cache disk", Level.UNKNOWN, f"{place.parent} cannot be written to: {error.strerror}", step)
        return
    level = Level.OK if min(written, read) >= SLOW_DISK_BYTES_S else Level.ADVICE
    step = "" if level is Level.OK else "forebay serve --cache-dir ON_A_FASTER_DISK: slower than one connection of an object store"
    text = f"{place.parent} ({kind}) takes {format_size(int(written))}/s, written and synced, and gives {format_size(int(read))}/s"
    yield RuleFinding("cache disk", level, f"{text}, read back from the disk", step)


def _tried_bytes_s(folder: Path) -> tuple[float, float]:
    """Written, read. Raises ``OSError`` where the folder is not ours."""
    block = os.urandom(1 << 20)  # some file systems store zeros as nothing
    into = bytearray(len(block))
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        began = time.monotonic()
        for _ in range(_TRIED_BYTES // len(block)):
            file.write(block)
        os.fdatasync(file.fileno())
        written_s = time.monotonic() - began
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # else memory is measured
        file.seek(0)
        began = time.monotonic()
        while file.readinto(into):
            pass
        return _TRIED_BYTES / written_s, _TRIED_BYTES / (time.monotonic() - began)


def origin_findings(shard: Shard, settings: Any, environ: Mapping[str, str]) -> Iterator[RuleFinding]:
    """Of the shard's origin, asked with this environment's credentials and settings."""
    from forebay_proxy.cli.doctor.origin_probe import credentials_of, probed  # noqa: PLC0415  (loads the HTTP client: half a second)

    try:
        yield RuleFinding("credentials", Level.OK, credentials_of(shard, environ))
        facts = probed(shard, settings, environ)
    except ForebayError as error:
        yield RuleFinding("origin", Level.FAULT, str(error), error.next_step or f"curl -sSI '{shard.name}'")
        return
    first, alone, together = facts.first_byte_s, facts.alone_bytes_s, facts.together_bytes_s
    text = f"{shard.origin}: first byte after {format_duration(first)}"
    if alone:
        text += f", {format_size(int(alone))}/s over one connection"
    if together:
        text += f", {format_size(int(together))}/s over eight"
    level = Level.ADVICE if first > SLOW_FIRST_BYTE_S else Level.OK
    step = "announce what comes, so that nobody waits for it: forebay run -- python train.py" if level is Level.ADVICE else ""
    yield RuleFinding("origin", level, text, step)
    if facts.ranged:
        yield RuleFinding("ranges", Level.OK, "yes: a broken body goes on where it broke, and eight connections work at one shard")
    else:
        step = "serve the files by a server that knows Range (nginx, S3)"
        yield RuleFinding("ranges", Level.ADVICE, "no: each shard comes over one connection, and from its start after a break", step)
    version = facts.version
    if version.identity and not version.is_weak:
        yield RuleFinding("version", Level.OK, f"named by {version.identity.partition(':')[0]}")
    elif version.identity:
        step = "let the origin send an ETag: then the shared tier can hold its shards, too"
        yield RuleFinding("version", Level.ADVICE, f"named by {version.identity.partition(':')[0]} only", step)
    else:
        step = "let the origin send an ETag or Last-Modified"
        yield RuleFinding("version", Level.FAULT, "not named: nothing of it can be kept, each reader fetches it anew", step)
    if facts.skew_s is not None and abs(facts.skew_s) > SKEW_S:
        text = f"this machine's is {format_duration(abs(facts.skew_s))} {'behind' if facts.skew_s > 0 else 'ahead of'} the origin's"
        yield RuleFinding("clock", Level.ADVICE, text, "timedatectl set-ntp true: signed requests are refused once it is some minutes")
