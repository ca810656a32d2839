"""What can be known of a set before a run: samples from a file or the sidecar's indexes, bytes from the origin. No shard is fetched."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
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

_Faults = tuple[dict[str, str], dict[str, str]]
_GIVEN_UP = 16  # shards in a row without an index: a set that was never counted is not asked for to its end
_COMPRESSED = ("it has the encoding", "(gzip)", "(bzip2)", "(xz)", "(zstd)")  # such a tar is read all the same, and only cannot be counted
_NOTICED = 5_000  # more requests than these take seconds


def known_facts(sources: Sequence[Source], settings: Settings, seams: Seams, flags: dict[str, Any]) -> SetFacts:
    """Of the shards of ``sources``. Raises ``ConfigError`` for a flag that cannot be what it says; what else is not known is said there."""
    sidecar, why = _sidecar(flags["url"])
    broken, torn = dict[str, str](), dict[str, str]()
    counts, counted_by = _counts(sources, flags, sidecar, why, (broken, torn))
    lengths, measured_by = _lengths(sources, settings, seams, flags, sidecar)
    names = [Shard.of(source.url, source.headers).name for source in sources]
    return SetFacts(names, counts, counted_by, lengths, measured_by, _cache_bytes(flags, settings, sidecar), broken, torn)


def _sidecar(url: str | None) -> tuple[SidecarClient | None, str]:
    try:
        return locate(url, os.environ), ""
    except ForebayError as error:
        if url:
            raise
        return None, str(error)


def _counts(
    sources: Sequence[Source], flags: dict[str, Any], sidecar: SidecarClient | None, why: str, faults: _Faults
) -> tuple[list[int | None], str]:
    """Samples of each, and who counted them; into ``faults``: shards without samples to count, shards whose samples are torn, and why."""
    if flags["samples"] is not None:
        return [flags["samples"]] * len(sources), "as given"
    if flags["sizes"] is not None:
        told = SizesJson(Path(flags["sizes"])).counts()
        found = [told.get(file_name(source.url.text())) for source in sources]
        return found, _partly(found, flags["sizes"])
    if sidecar is None:
        return [None] * len(sources), why
    try:
        found = _indexed(sources, sidecar, faults)
    except (SidecarRefused, SidecarUnreachable) as error:
        return [None] * len(sources), str(error)
    return found, _partly(found, "the sidecar's sample indexes")


def _partly(found: Sequence[int | None], where: str) -> str:
    known = sum(count is not None for count in found)
    if not known:
        return f"{where} know{'' if where.endswith('s') else 's'} none of these shards"
    return where if known == len(found) else f"{where}, {known:,} of {len(found):,} shards"


def _indexed(sources: Sequence[Source], sidecar: SidecarClient, faults: _Faults) -> list[int | None]:
    """Raises ``SidecarUnreachable``, and ``SidecarRefused`` of an origin in trouble: it would keep each shard's question waiting."""
    broken, torn = faults
    if len(sources) > _NOTICED:
        notice(f"asking the sidecar for the counts of {many(len(sources), 'shard')}; --sizes is quicker")
    found = list[int | None]()
    for source in sources:
        if len(found) == _GIVEN_UP and not broken and not any(count is not None for count in found):
            break
        try:
            count, _, amiss = sidecar.samples(source.url.proxy_path(), source.headers)
            found.append(count)
            if amiss:
                torn[Shard.of(source.url, source.headers).name] = amiss
        except SidecarRefused as refused:
            if refused.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                raise
            found.append(None)
            if refused.status == HTTPStatus.NOT_FOUND and not any(kind in str(refused) for kind in _COMPRESSED):
                broken[Shard.of(source.url, source.headers).name] = str(refused)  # else it has none yet
    return found + [None] * (len(sources) - len(found))


def _lengths(
    sources: Sequence[Source], settings: Settings, seams: Seams, flags: dict[str, Any], sidecar: SidecarClient | None
) -> tuple[list[int], str]:
    """Of the running sidecar, which may hold them and knows what it may ask; else of the origins, as the settings allow it.

    Raises ``ConfigError`` where the settings do not let an origin be asked: its next step names the flag.
    """
    if flags["shard_size"] is not None:
        return [flags["shard_size"]], "as given"
    refused = ""
    if sidecar is not None:
        distinct = list({Shard.of(source.url, source.headers).name: source for source in sources}.items())
        asked = distinct[:: max(1, -(-len(distinct) // flags["ask"]))]
        try:
            held = [_length(name, source, sidecar) for name, source in asked]
            return held, "asked of the sidecar" if len(asked) == len(distinct) else f"{len(asked)} of {len(distinct)} shards asked"
        except ForebayError as error:
            refused = error_line(error)
    shards = list({shard.name: shard for shard in (Shard.of(source.url, source.headers) for source in sources)}.values())
    try:
        found = seams.survey(shards, settings, flags["ask"])
    except ForebayError as error:
        if isinstance(error, ConfigError) and not refused:
            raise
        return [], refused or error_line(error)
    how = "asked of the origin" if found.asked == found.total else f"{found.asked} of {found.total} shards asked"
    return list(found.lengths.values()), how


def _length(name: str, source: Source, sidecar: SidecarClient) -> int:
    """Of one that it holds, without asking the origin. Raises ``ForebayError``."""
    held = next((row["length_bytes"] for row in sidecar.shards(name) if row["length_bytes"] is not None), None)
    length = sidecar.length(source.url.proxy_path(), source.headers) if held is None else int(held)
    if length is None:
        raise ConfigError(f"{name}: its origin tells no length", next_step="give --shard-size")
    return length


def _cache_bytes(flags: dict[str, Any], settings: Settings, sidecar: SidecarClient | None) -> int:
    """As given, else what the running sidecar's disk lets it have, else what a sidecar would be given; 0 where nobody says."""
    if flags["cache_size"] is not None:
        return int(flags["cache_size"])
    if sidecar is not None:
        with suppress(ForebayError):  # it ended between two questions: as without a sidecar
            return int(sidecar.status()["cache"]["effective_bytes"])
    return settings.cache_size.count if isinstance(settings.cache_size, TotalBytes) else 0
