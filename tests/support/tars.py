"""Tar shards whose samples can be told apart: small, made in memory."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence
from pathlib import Path

from support.fake_proxy import ramp

__all__ = ["expected", "shard_files", "tar_shard"]


def tar_shard(shard: int, samples: int = 5, size: int = 3000) -> bytes:
    """A tar of ``samples`` samples, each ``<shard>-<n>.bin`` (``size`` bytes) and ``.txt``."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for number in range(samples):
            key = f"{shard:03d}-{number:03d}"
            for suffix, content in (("bin", ramp(size, seed=shard * 1000 + number)), ("txt", key.encode())):
                entry = tarfile.TarInfo(f"{key}.{suffix}")
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def expected(shards: int, samples: int = 5, size: int = 3000) -> dict[str, bytes]:
    """Key -> content of ``.bin`` over all shards."""
    return {f"{shard:03d}-{n:03d}": ramp(size, seed=shard * 1000 + n) for shard in range(shards) for n in range(samples)}


def shard_files(folder: Path, counts: Sequence[int]) -> list[str]:
    """Shards of so many small samples, one after the other, as files in ``folder``."""
    found = [folder / f"{number:03d}.tar" for number in range(len(counts))]
    for number, samples in enumerate(counts):
        found[number].write_bytes(tar_shard(number, samples, size=20))
    return [str(path) for path in found]
