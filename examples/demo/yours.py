"""``scripts/demo URL…``: the comparison on a user's own shards. Reads them and nothing else; the first 2 GB."""

from __future__ import annotations

import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import webdataset as wds

from demo.processes import Sidecar, run_trainer
from demo.report import Report, Row, megabytes
from demo.scale import Scale
from forebay_proxy.wire.commands.sources import Source, parse_source
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl, proxy_url

__all__ = ["NotForUs", "Picked", "compare", "read_alone", "sources"]

TIMEOUT_S = 60.0
ALONE_BYTES = 200_000_000


class NotForUs(Exception):
    """These shards cannot be compared; the message says why, and what would do."""


@dataclass(frozen=True)
class Picked:
    """The shards that are read: as the user wrote them, where they are behind the sidecar, how many bytes (0: unknown)."""

    texts: tuple[str, ...]
    sources: tuple[Source, ...]
    bytes: int


def sources(patterns: Sequence[str]) -> list[tuple[str, Source]]:
    """Each shard as written, and as understood. Raises ``NotForUs`` for a command or path Forebay leaves alone."""
    found = []
    for text in (url for pattern in patterns for url in wds.shardlists.expand_urls(pattern)):
        try:
            source = parse_source(text)
        except InvalidShardUrl as error:
            raise NotForUs(f"{text}: {error}") from error
        if source is None:
            raise NotForUs(f"{text}: Forebay leaves this to webdataset (a local path needs no cache; other commands it does not know)")
        found.append((text, source))
    return found


def allowed_origins(found: Sequence[tuple[str, Source]]) -> list[str]:
    """The user named these hosts, so a loopback one among them is meant."""
    urls = [source.url for _, source in found if source.url.scheme in ("http", "https")]
    return sorted({f"{url.scheme}://{url.authority}" for url in urls})


def pick(found: Sequence[tuple[str, Source]], sidecar: Sidecar, limit_bytes: int) -> Picked:
    """The first shards that stay within ``limit_bytes`` together, at least one. Lengths come from HEAD through the sidecar."""
    texts: list[str] = []
    picked: list[Source] = []
    total = 0
    for text, source in found:
        length = _length(sidecar, source)
        if picked and total + length > limit_bytes:
            break
        texts.append(text)
        picked.append(source)
        total += length
    return Picked(tuple(texts), tuple(picked), total)


def _request(sidecar: Sidecar, source: Source, method: str) -> Any:
    request = urllib.request.Request(proxy_url(sidecar.url, source.url), method=method, headers=dict(source.headers))
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(request, timeout=TIMEOUT_S)


def _length(sidecar: Sidecar, source: Source) -> int:
    try:
        with _request(sidecar, source, "HEAD") as answer:
            return int(answer.headers.get("Content-Length") or 0)
    except OSError as error:
        raise NotForUs(f"{source.url.text()}: {error}") from error


def read_alone(patterns: Sequence[str], scale: Scale) -> None:
    """``forebay try`` on the first shards; its table is printed, and so is what is wrong with them."""
    limit = min(scale.limit_bytes, ALONE_BYTES)
    sys.stdout.flush()
    done = subprocess.run([sys.executable, "-m", "forebay_proxy", "try", "--limit", str(limit), *patterns], check=False)
    if done.returncode:
        raise NotForUs("'forebay try' failed: see the line above")


def compare(report: Report, scale: Scale, sidecar: Sidecar, found: Sequence[tuple[str, Source]], root: Path) -> list[Row]:
    """Rows direct, cold, warm and local. Raises ``NotForUs`` when the first shard cannot be opened."""
    with report.working("asking for the shards' lengths"):
        picked = pick(found, sidecar, scale.limit_bytes)
    report.heading("2", "One epoch over your shards, side by side")
    report.line(f"{len(picked.texts)} of {len(found)} shards, {megabytes(picked.bytes)}, read only")
    direct = _row(report, scale, sidecar, "direct, as you wrote it", picked.texts, "webdataset", None)
    cold = _row(report, scale, sidecar, "through Forebay, cold", picked.texts, "forebay", direct)
    warm = _row(report, scale, sidecar, "through Forebay, warm", picked.texts, "forebay", direct)
    rows = [direct, cold, warm, *_local(report, scale, sidecar, picked, root)]
    report.rows(rows)
    report.line("[dim]origin sent: counted by the sidecar; nobody counts what a direct reader takes.[/]")
    return rows


def _row(report: Report, scale: Scale, sidecar: Sidecar, name: str, urls: Sequence[str], through: str, baseline: Row | None) -> Row:
    workers = min(scale.workers, len(urls))  # webdataset refuses a worker without a shard
    options = [*scale.trainer_options(through), "--workers", str(workers), "--limit-bytes", str(scale.limit_bytes)]
    before = sidecar.status()["bytes"]["origin"]
    with report.working(name) as say:
        told = lambda facts: say(f"{name}: {facts.get('samples', 0):,} samples")  # noqa: E731
        epoch = run_trainer(urls, *options, environment=sidecar.environment(), told=told)
    if epoch["error"]:
        report.line(f"[red]{name}: {epoch['error']}[/]")
    sent = sidecar.status()["bytes"]["origin"] - before if through == "forebay" else None
    return Row(name, epoch, sent, None, baseline)


def _local(report: Report, scale: Scale, sidecar: Sidecar, picked: Picked, root: Path) -> list[Row]:
    """The same shards as files, copied out of the warm cache; nothing where the disk has no room for a second copy."""
    if shutil.disk_usage(root).free < 2 * picked.bytes:
        report.line("no room for a local copy: the row of local files is left out")
        return []
    files = []
    with report.working("copying the shards for the row of local files"):
        for index, source in enumerate(picked.sources):
            path = root / f"local-{index:06d}.tar"
            with _request(sidecar, source, "GET") as answer, path.open("wb") as file:
                shutil.copyfileobj(answer, file, 1024 * 1024)
            files.append(str(path))
    return [_row(report, scale, sidecar, "local files", files, "webdataset", None)]
