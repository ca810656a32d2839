"""What ``forebay plan`` was asked: the shards, how long they are, who reads them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from forebay_proxy.cli.options import SURVEY_SETTINGS, load_settings
from forebay_proxy.cli.seams import Seams
from forebay_proxy.cli.sources import named_texts, understood
from forebay_proxy.config.settings import Settings
from forebay_proxy.core.errors import ConfigError
from forebay_proxy.core.quantities import TotalBytes
from forebay_proxy.core.shard import Shard
from forebay_proxy.simulate.recordings import ALONE, Recording, read_recording
from forebay_proxy.simulate.workload import Workload, shuffled

__all__ = ["PlanArguments"]


@dataclass(frozen=True)
class PlanArguments:
    """The flags as parsed, and the shards that they name; ``recording`` is what ``--replay`` gave."""

    settings: Settings
    shards: list[Shard]
    recording: Recording | None
    flags: dict[str, Any]

    @classmethod
    def of(cls, urls: tuple[str, ...], lists: tuple[str, ...], config: Path | None, flags: dict[str, Any]) -> PlanArguments:
        """Reads the lists and the file. Raises ``ConfigError``, ``click.UsageError``."""
        settings = load_settings({name: flags[name] for name in SURVEY_SETTINGS}, config)
        shards = [Shard.of(source.url, source.headers) for source in understood(named_texts(urls, lists))]
        if flags["file"] is not None:
            if shards:
                raise click.UsageError("--replay names what is read; no URLs go with it")
            for name in ("rate", "origin_bandwidth"):
                if flags[name] is not None:
                    raise click.UsageError(f"--{name.replace('_', '-')} is for an estimate: a replay counts bytes, and knows no seconds")
            recording = read_recording(_text(flags["file"]))
            return cls(settings, recording.shards(), recording, flags)
        if not shards:
            raise click.UsageError("name at least one URL, a list with --from, or a file to --replay")
        return cls(settings, list({shard.name: shard for shard in shards}.values()), None, flags)

    @property
    def cache_bytes(self) -> int:
        given = self.flags["cache_size"]
        if given is None and isinstance(self.settings.cache_size, TotalBytes):
            return self.settings.cache_size.count
        if given is None:
            raise click.UsageError("--cache-size is missing: how many bytes may the cache hold, as 500GB")
        return int(given)

    def need(self, **examples: str) -> None:
        """Raises ``click.UsageError`` that names all of these flags that are not given, each with its example."""
        given = {"cache_size"} if isinstance(self.settings.cache_size, TotalBytes) else set()
        missing = [
            f"--{name.replace('_', '-')} {text}" for name, text in examples.items() if self.flags[name] is None and name not in given
        ]
        if missing:
            raise click.UsageError(f"an estimate needs {' and '.join(missing)} too (with your own figures)")

    def lengths(self, seams: Seams) -> tuple[dict[str, int], str]:
        """(bytes of every shard by name, how they are known). Asks the origin if nothing else tells."""
        known = self.recording.lengths if self.recording else {}
        size = self.flags["shard_size"]
        missing = [shard for shard in self.shards if shard.name not in known]
        if not missing:
            return known, "as recorded"
        if size is not None:
            return {**{shard.name: size for shard in missing}, **known}, "as given"
        found = seams.survey(missing, self.settings, self.flags["ask"])
        lengths = {shard.name: known.get(shard.name, found.lengths.get(shard.name, found.mean_bytes)) for shard in self.shards}
        return lengths, "asked of the origin" if found.asked == found.total else f"estimated: {found.asked} of {found.total} shards asked"

    def workload(self, lengths: dict[str, int]) -> Workload:
        """As recorded; a list is read as the flags say: shuffled, in epochs, by many."""
        assert self.recording is not None, "asked for a replay"
        recording, flags = self.recording, self.flags
        if recording.kind == "list":
            return shuffled(
                recording.orders[ALONE][0].shards, lengths, epochs=flags["epochs"] or 2, seed=flags["shuffle"],
                readers=flags["workers"] or 1, jobs=flags["jobs"], ahead=flags["ahead"],
            )  # fmt: skip
        otherwise = {**flags, "jobs": flags["jobs"] if flags["jobs"] > 1 else None}
        for name in ("epochs", "shuffle", "workers", "jobs"):
            if otherwise[name] is not None:
                raise click.UsageError(f"--{name} is for a list of shards; this {recording.kind} says itself who read what")
        return Workload(recording.orders, lengths, flags["ahead"], recording.turns)


def _text(path: str) -> str:
    try:
        return sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}", next_step="check --replay") from error
