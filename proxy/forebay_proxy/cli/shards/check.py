"""``forebay check``: asks for one shard as a reader would, and says its origin's answer, its kind, and what to do."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import click

from forebay_proxy.cli.client import SidecarClient, SidecarRefused, locate
from forebay_proxy.cli.options import json_option, url_option
from forebay_proxy.cli.output import say, say_json, show_table
from forebay_proxy.cli.run.env import ways_in
from forebay_proxy.cli.sources import understood
from forebay_proxy.core.errors import ConfigError, ForebayError
from forebay_proxy.core.exit_codes import ExitCode
from forebay_proxy.core.quantities import format_duration, format_size
from forebay_proxy.core.shard import Shard
from forebay_proxy.wire.commands.sources import Source, parse_source
from forebay_proxy.wire.tar.first_bytes import LOOK_BYTES, compression_of, next_step, why_no_tar
from forebay_proxy.wire.urls.patterns import InvalidPattern, expand
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl

__all__ = ["check"]


_NO_SIDECAR = "http://127.0.0.1:7070"
_PIECES = {
    True: "yes: a broken body is resumed",
    False: "no: the origin gives the whole alone; a broken body begins anew",
    None: "not known: nothing of it was stored",
}


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
    if _is_left_alone(shard):  # nothing is asked, and no sidecar is needed: which way it goes, with the default address
        try:
            base = str(locate(url, os.environ).status()["url"])
        except ForebayError:
            base = _NO_SIDECAR
        found: dict[str, Any] = {"readable": None, "left_to_webdataset": True}
        code, rows = int(ExitCode.DONE), list[tuple[str, ...]]([("origin", "not asked")])
    else:
        sidecar = locate(url, os.environ)
        source = next(understood([shard]), None)
        if source is None:
            raise ConfigError("the pattern stands for no URL", next_step="name one shard")
        base = sidecar.address if sidecar.address.startswith("http") else str(sidecar.status()["url"])
        found, code = _asked(sidecar, source)
        rows = _rows(found)
    if as_json:
        say_json(found)
    else:
        show_table(ways_in(shard, base, os.environ))
        say("")
        show_table(rows)
    return code


def _is_left_alone(shard: str) -> bool:
    """Whether Forebay leaves it to WebDataset: a local path, an unknown command, a scheme that is not ours."""
    try:
        first = next(iter(expand(shard)), None)
        return first is not None and parse_source(first) is None
    except (InvalidPattern, InvalidShardUrl):
        return False


def _asked(sidecar: SidecarClient, source: Source) -> tuple[dict[str, Any], int]:
    """What was found, for programs; and the exit code."""
    target, started = source.url.proxy_path(), time.monotonic()
    asked = {"Range": f"bytes=0-{LOOK_BYTES - 1}", **dict(source.headers)}
    try:
        status, headers, first = sidecar.read(target, asked, LOOK_BYTES)
    except SidecarRefused as refused:
        return {"readable": False, "status": refused.status, "error": str(refused), "next_step": refused.next_step}, ExitCode.PART_FAILED
    seconds, why = time.monotonic() - started, why_no_tar(first)
    length = headers.get("Content-Range", "").rpartition("/")[2] if status == 206 else headers.get("Content-Length", "")
    counted, amiss = None, ""
    with suppress(SidecarRefused):  # it has no index yet
        counted, _, amiss = sidecar.samples(target, source.headers)
    row = next(iter(sidecar.shards(Shard.of(source.url, source.headers).name)), {})  # not there: nothing of it was stored
    return {
        "readable": True, "status": status, "seconds": seconds,
        "length_bytes": int(length) if length.isascii() and length.isdigit() else None,
        "etag": headers.get("ETag", ""), "stored": "stored" in headers.get("Cache-Status", ""),
        "cache_status": headers.get("Cache-Status", ""), "is_tar": not why, "kind": why or compression_of(first) or "tar",
        "identity": row.get("identity", ""), "samples": counted, "amiss": amiss,
        "in_pieces": row.get("in_pieces"), "credential": [name for name, _ in source.headers],
    }, ExitCode.PART_FAILED if why else ExitCode.DONE  # fmt: skip


def _version(found: Mapping[str, Any]) -> str:
    etag, identity = str(found["etag"]), str(found["identity"])
    if not etag.startswith('"fb-'):
        return f"ETag {etag}"
    kind, _, rest = identity.partition(":")
    if kind in ("etag", "weak"):
        own = rest.rpartition(":")[0] if kind == "weak" else rest
        return f"the origin's ETag {own} is {'weak' if kind == 'weak' else 'of the encoded bytes'}; readers get {etag}"
    return "no ETag of the origin's own: a date, or nothing"


def _rows(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    if not found["readable"]:
        rows: list[tuple[str, ...]] = [("origin", f"cannot be read ({found['status']}): {found['error']}")]
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
