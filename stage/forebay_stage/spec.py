"""What a stage was asked for, as its destination remembers it: the same command goes on, another one is refused. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

from forebay_stage.errors import StageRefused

__all__ = ["Input", "StageSpec", "check_same", "document"]

FORMAT = 1
_NAMES = {
    "maps": "--map", "samples_per_shard": "--samples-per-shard", "bytes_per_shard": "--bytes-per-shard", "shuffle": "--shuffle",
    "zstd": "--zstd", "inputs": "SRC",
}  # fmt: skip


@dataclass(frozen=True)
class StageSpec:
    """All that the output's bytes depend on, besides the shards of SRC. ``zstd`` is a level; None is off, everywhere."""

    maps: tuple[str, ...] = ()
    samples_per_shard: int | None = None
    bytes_per_shard: int | None = None
    shuffle: int | None = None
    zstd: int | None = None

    @property
    def reshards(self) -> bool:
        """Whether the output's shards hold other samples than the input's: then there is a second phase."""
        return (self.samples_per_shard, self.bytes_per_shard, self.shuffle) != (None, None, None)

    @property
    def suffix(self) -> str:
        return ".tar" if self.zstd is None else ".tar.zst"

    def shard_name(self, number: int) -> str:
        """Of an output."""
        return f"{number:05d}{self.suffix}"


@dataclass(frozen=True)
class Input:
    """A shard of SRC in the version that the stage reads. ``name`` shows no credential; ``length`` in bytes.

    ``etag`` is "" where the origin tells its versions by nothing: then the length alone is compared.
    """

    name: str
    etag: str
    length: int


def document(spec: StageSpec, inputs: Sequence[Input]) -> bytes:
    """What the destination keeps as ``_stage/spec.json``."""
    asked = json.dumps(asdict(spec), sort_keys=True)
    digest = sha256("\n".join((asked, *(one.name for one in inputs))).encode()).hexdigest()
    rows = [(one.name, one.etag, one.length) for one in inputs]
    return json.dumps({"format": FORMAT, "digest": digest, **asdict(spec), "inputs": rows}, indent=0).encode()


def check_same(found: bytes, own: bytes, where: str) -> None:
    """Raise ``StageRefused`` unless the stage that began ``found`` at ``where`` is the one of ``own``: it names what differs."""
    theirs, ours = _parsed(found, where), json.loads(own)
    if theirs.get("format") != FORMAT:
        raise StageRefused(f"{where} was begun by another version of Forebay", next_step="finish it with that version, or name another DST")
    different = [
        f"{label} {_shown(theirs, name)}, not {_shown(ours, name)}" for name, label in _NAMES.items() if _differs(theirs, ours, name)
    ]
    if different:
        raise StageRefused(
            f"{where} belongs to another stage: {'; '.join(different)}",
            next_step="repeat the command that began it, name another DST, or delete what is there",
        )
    for (name, etag, length), (_, now, now_length) in zip(theirs["inputs"], ours["inputs"], strict=True):
        if (etag, length) != (now, now_length):
            raise StageRefused(
                f"shard {name}: was replaced since this stage began ({length} bytes, {etag}; now {now_length} bytes, {now})",
                next_step="bring back what it was, or stage SRC as it is now to another DST: one output must not mix two versions",
            )


def _parsed(found: bytes, where: str) -> Mapping[str, Any]:
    try:
        theirs = json.loads(found)
        if isinstance(theirs, dict) and ({*_NAMES, "digest"} <= theirs.keys() or theirs.get("format") != FORMAT):
            return theirs
    except ValueError:
        pass
    raise StageRefused(f"{where}: _stage/spec.json is not one that a stage wrote", next_step="name another DST, or delete what is there")


def _differs(theirs: Mapping[str, Any], ours: Mapping[str, Any], name: str) -> bool:
    if name == "inputs":
        return [row[0] for row in theirs[name]] != [row[0] for row in ours[name]]
    return bool(theirs[name] != ours[name])


def _shown(asked: Mapping[str, Any], name: str) -> str:
    value = asked[name]
    if name == "inputs":
        return f"{len(value)} shards from {value[0][0]} on"
    if isinstance(value, list):
        return " ".join(value) or "none"
    return "none" if value is None else str(value)
