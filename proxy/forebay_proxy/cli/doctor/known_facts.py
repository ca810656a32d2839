"""What can be known of a set before a run: samples from a file or the sidecar's indexes, bytes from the origin. No shard is fetched."""

from __future__ import annotations

import os
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

from forebay_proxy.cli.client import SidecarClient, SidecarRefused, SidecarUnreachable
from forebay_proxy.cli.doctor.rules import SetFacts
from forebay_proxy.cli.index.sizes_json import SizesJson, file_name
from forebay_proxy.cli.locate import locate
from forebay_proxy.cli.output import error_line, many, notice
from forebay_proxy.cli.seams import Seams
from forebay_proxy.config.settings import Settings
from forebay_proxy.core.errors import ConfigError, ForebayError
from forebay_proxy.core.quantities import TotalBytes
from forebay_proxy.core.shard import Shard
from forebay_proxy.wire.commands.sources import Source

__all__ = ["known_facts"]

_GIVEN_UP = 16  # shards in a row without an index: a set that was never counted is not asked for to its end
_NOTICED = 5_000  # more requests than these take seconds


def known_facts(sources: Sequence[Source], settings: Settings, seams: Seams, flags: dict[str, Any]) -> SetFacts:
    """Of the shards of ``sources``. Raises ``ConfigError`` for a flag that cannot be what it says; what else is not known is said there."""
    sidecar, why = _sidecar(flags["url"])
    counts, counted_by = _counts(sources, flags, sidecar, why)
    lengths, measured_by = _lengths(sources, settings, seams, flags)
    names = [Shard.of(source.url, source.headers).name for source in sources]
    return SetFacts(names, counts, counted_by, lengths, measured_by, _cache_bytes(flags, settings, sidecar))


def _sidecar(url: str | None) -> tuple[SidecarClient | None, str]:
    try:
        return locate(url, os.environ), ""
    except ForebayError as error:
        if url:
            raise
        return None, str(error)


def _counts(sources: Sequence[Source], flags: dict[str, Any], sidecar: SidecarClient | None, why: str) -> tuple[list[int | None], str]:
    if flags["samples"] is not None:
        return [flags["samples"]] * len(sources), "as given"
    if flags["sizes"] is not None:
        told = SizesJson(Path(flags["sizes"])).counts()
        found = [told.get(file_name(source.url.text())) for source in sources]
        return found, _partly(found, flags["sizes"])
    if sidecar is None:
        return [None] * len(sources), why
    try:
        found = _indexed(sources, sidecar)
    except (SidecarRefused, SidecarUnreachable) as error:
        return [None] * len(sources), str(error)
    return found, _partly(found, "the sidecar's sample indexes")


def _partly(found: Sequence[int | None], where: str) -> str:
    known = sum(count is not None for count in found)
    if not known:
        return f"{where} know{'' if where.endswith('s') else 's'} none of these shards"
    return where if known == len(found) else f"{where}, {known:,} of {len(found):,} shards; the others taken for the mean"


def _indexed(sources: Sequence[Source], sidecar: SidecarClient) -> list[int | None]:
    """Raises ``SidecarUnreachable``, and ``SidecarRefused`` of an origin in trouble: it would keep each shard's question waiting."""
    if len(sources) > _NOTICED:
        notice(f"asking the sidecar for the counts of {many(len(sources), 'shard')}; --sizes is quicker")
    found = list[int | None]()
    for source in sources:
        if len(found) == _GIVEN_UP and not any(count is not None for count in found):
            break
        try:
            found.append(sidecar.samples(source.url.proxy_path(), source.headers)[0])
        except SidecarRefused as refused:
            if refused.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            found.append(None)  # it has no index (yet): the row says of how many that is so
    return found + [None] * (len(sources) - len(found))


def _lengths(sources: Sequence[Source], settings: Settings, seams: Seams, flags: dict[str, Any]) -> tuple[list[int], str]:
    """Raises ``ConfigError`` where the settings do not let an origin be asked: its next step names the flag."""
    if flags["shard_size"] is not None:
        return [flags["shard_size"]], "as given"
    shards = list({shard.name: shard for shard in (Shard.of(source.url, source.headers) for source in sources)}.values())
    try:
        found = seams.survey(shards, settings, flags["ask"])
    except ConfigError:
        raise
    except ForebayError as error:
        return [], error_line(error)
    how = "asked of the origin" if found.asked == found.total else f"{found.asked} of {found.total} shards asked"
    return list(found.lengths.values()), how


def _cache_bytes(flags: dict[str, Any], settings: Settings, sidecar: SidecarClient | None) -> int:
    """As given, else what the running sidecar has; 0 where nobody says."""
    if flags["cache_size"] is not None:
        return int(flags["cache_size"])
    if isinstance(settings.cache_size, TotalBytes):
        return settings.cache_size.count
    if sidecar is None:
        return 0
    try:
        return int(sidecar.status()["cache"]["capacity_bytes"])
    except ForebayError:  # it ended between two questions; the rule is left out, as without a sidecar
        return 0
