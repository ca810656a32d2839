"""``forebay check``: asks for one shard as a reader would, and says its origin's answer, its kind, and what to do."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import click

from forebay_proxy.cli.client import SidecarClient, SidecarRefused
from forebay_proxy.cli.locate import locate
from forebay_proxy.cli.options import json_option, url_option
from forebay_proxy.cli.output import plain_table, say, say_json
from forebay_proxy.cli.run.check import check_rows
from forebay_proxy.cli.sources import understood
from forebay_proxy.core.errors import ConfigError, ForebayError
from forebay_proxy.core.exit_codes import ExitCode
from forebay_proxy.core.quantities import format_duration, format_size
from forebay_proxy.core.shard import Shard
from forebay_proxy.wire.commands.sources import Source, parse_source
from forebay_proxy.wire.tar.first_bytes import LOOK_BYTES, compression_of, next_step, why_no_tar
from forebay_proxy.wire.urls.patterns import InvalidPattern, expand
from forebay_proxy.wire.urls.quoting import InvalidShardUrl

__all__ = ["check"]


_NO_SIDECAR = "http://127.0.0.1:7070"
_PIECES = {
    True: "yes: a broken body is resumed",
    False: "no: the origin gives the whole alone; a broken body begins anew",
    None: "not known: nothing of it was stored",
}


@dataclass(frozen=True)
class _OriginAnswer:
    """What the sidecar passed on of the origin's answer to the first bytes."""

    status: int
    headers: Mapping[str, str]
    first: bytes
    seconds: float

    @property
    def length(self) -> int | None:
        total = self.headers.get("Content-Range", "").rpartition("/")[2] if self.status == 206 else self.headers.get("Content-Length", "")
        return int(total) if total.isascii() and total.isdigit() else None


@click.command()
@click.argument("shard")
@json_option
@url_option
def check(shard: str, as_json: bool, url: str | None) -> int:
    """Ask the running sidecar for the first bytes of SHARD, and say what becomes of it: way in, origin, version, ranges, tar or not.

    \b
    Examples:
      forebay check s3://bucket/train-000000.tar
      forebay check 'pipe:curl -sL -H "Authorization: Bearer …" https://host/train-{000000..000999}.tar'
      forebay check https://host/a.tar --json
      forebay check /data/a.tar                   and any command: which way it goes

    Of a pattern the first shard is asked for. Its first segment is stored as for any reader. Exit code 0: it can be read; 1: it cannot, and
    the last line says what to do; 2: no sidecar runs. An origin in trouble is named after 5 s, and is the answer after 15 s; readers wait
    for --retry-budget-s.
    """
    if _is_left_alone(shard):
        return _say_left_alone(shard, url, as_json=as_json)
    sidecar = locate(url, os.environ)
    source = next(understood([shard]), None)
    if source is None:
        raise ConfigError("the pattern stands for no URL", next_step="name one shard")
    base = sidecar.address if sidecar.address.startswith("http") else str(sidecar.status()["url"])
    found, code = _asked(sidecar, source)
    if as_json:
        say_json(found)
        return code
    for line in [*plain_table(check_rows(shard, base, os.environ)), "", *plain_table([(name, str(text)) for name, text in _rows(found)])]:
        say(line)
    return code


def _is_left_alone(shard: str) -> bool:
    """Whether Forebay leaves it to WebDataset: a local path, an unknown command, a scheme that is not ours."""
    try:
        first = next(iter(expand(shard)), None)
        return first is not None and parse_source(first) is None
    except (InvalidPattern, InvalidShardUrl):
        return False


def _say_left_alone(shard: str, url: str | None, *, as_json: bool) -> int:
    """Nothing is asked; which way it goes, with the default address where no sidecar runs."""
    try:
        base = str(locate(url, os.environ).status()["url"])
    except ForebayError:
        base = _NO_SIDECAR
    if as_json:
        say_json({"readable": None, "left_to_webdataset": True})
        return ExitCode.DONE
    for line in [*plain_table(check_rows(shard, base, os.environ)), "", "Forebay does not read it, and asked nobody."]:
        say(line)
    return ExitCode.DONE


def _asked(sidecar: SidecarClient, source: Source) -> tuple[dict[str, Any], int]:
    """What was found, for programs; and the exit code."""
    try:
        answer = _first_bytes(sidecar, source)
    except SidecarRefused as refused:
        return {"readable": False, "status": refused.status, "error": str(refused), "next_step": refused.next_step}, ExitCode.PART_FAILED
    why = why_no_tar(answer.first)
    counted, amiss = _counted(sidecar, source)
    row = next(iter(sidecar.shards(Shard.of(source.url, source.headers).name)), {})  # not there: nothing of it was stored
    return {
        "readable": True, "status": answer.status, "seconds": answer.seconds, "length_bytes": answer.length,
        "etag": answer.headers.get("ETag", ""), "stored": "stored" in answer.headers.get("Cache-Status", ""),
        "cache_status": answer.headers.get("Cache-Status", ""), "is_tar": not why, "kind": why or compression_of(answer.first) or "tar",
        "identity": row.get("identity", ""), "samples": counted, "amiss": amiss,
        "in_pieces": row.get("in_pieces"), "credential": [name for name, _ in source.headers],
    }, ExitCode.PART_FAILED if why else ExitCode.DONE  # fmt: skip


def _first_bytes(sidecar: SidecarClient, source: Source) -> _OriginAnswer:
    started = time.monotonic()
    asked = {"Range": f"bytes=0-{LOOK_BYTES - 1}", **dict(source.headers)}
    status, headers, first = sidecar.read(source.url.proxy_path(), asked, LOOK_BYTES)
    return _OriginAnswer(status, headers, first, time.monotonic() - started)


def _counted(sidecar: SidecarClient, source: Source) -> tuple[int | None, str]:
    """Its samples, None where it has no index yet, and what is amiss with them."""
    try:
        count, _, amiss = sidecar.samples(source.url.proxy_path(), source.headers)
    except SidecarRefused:
        return None, ""
    return count, amiss


def _version(found: Mapping[str, Any]) -> str:
    etag, identity = str(found["etag"]), str(found["identity"])
    if not etag.startswith('"fb-'):
        return f"ETag {etag}"
    kind, _, rest = identity.partition(":")
    if kind in ("etag", "weak"):
        own = rest.rpartition(":")[0] if kind == "weak" else rest
        return f"the origin's ETag {own} is {'weak' if kind == 'weak' else 'of the encoded bytes'}; readers get {etag}"
    return "no ETag of the origin's own: a date, or nothing"


def _rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not found["readable"]:
        rows = [("origin", f"cannot be read ({found['status']}): {found['error']}")]
        return rows + ([("do this", found["next_step"])] if found["next_step"] else [])
    length = "of unknown length" if found["length_bytes"] is None else format_size(found["length_bytes"])
    rows = [
        ("origin", f"answers in {format_duration(found['seconds'])}, {length}"),
        ("version", _version(found)),
        ("in pieces", _PIECES[found["in_pieces"]]),
        ("cache", found["cache_status"] or "-"),
        ("it is", found["kind"]),
    ]
    if found["samples"] is not None:
        rows.append(("samples", f"{found['samples']:,}"))
    if found["credential"]:
        rows.append(("sent along", ", ".join(found["credential"])))
    if not found["is_tar"]:
        step = next_step(found["kind"]) or "webdataset reads tars: look at the URL in a browser, and at the credential that travels"
        rows.append(("do this", step))
    if found["amiss"]:
        rows.append(("do this", found["amiss"]))
    return rows
