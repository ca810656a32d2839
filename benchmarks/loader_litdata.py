"""Convert tars for LitData, with an interpreter that has it: INTERPRETER benchmarks/loader_litdata.py FOLDER TAR...

Its own writer, its default chunk size, no compression; a sample is a dict of the same key and the same bytes.
"""

from __future__ import annotations

import sys
import tarfile
from collections.abc import Iterator
from typing import Any

from litdata.streaming.writer import BinaryWriter


def samples(paths: list[str]) -> Iterator[dict[str, Any]]:
    for path in paths:
        sample: dict[str, Any] = {}
        with tarfile.open(path) as tar:
            for entry in tar:
                key, _, suffix = entry.name.partition(".")
                if sample and key != sample["__key__"]:
                    yield sample
                    sample = {}
                found = tar.extractfile(entry)
                assert found is not None
                sample["__key__"] = key
                sample[suffix] = found.read()
        yield sample


def main() -> None:
    writer = BinaryWriter(sys.argv[1], chunk_bytes="64MB")
    for number, sample in enumerate(samples(sys.argv[2:])):
        writer[number] = sample
    writer.done()
    writer.merge()


if __name__ == "__main__":
    main()
