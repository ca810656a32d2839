"""Programs that open by fsspec, each as its users write it: ``python fsspec_programs.py BASE [[PREFIX, [NAME, ...]], ...]``, in JSON.

Run in the environment ``.venv-clients``. PREFIX stands before a URL: "" or ``forebay::``. Below the URL BASE each program has a folder NAME
of its own, with ``0000.tar`` to ``0003.tar``, ``x.parquet`` and no ``none.tar``. Prints as JSON, for each prefix, of each program, what it
read, how many bytes the sidecar fetched meanwhile, and how many it sent. They share a process, since their libraries are imported for
seconds.
"""

from __future__ import annotations

import hashlib
import sys
import tarfile
from collections.abc import Callable
from typing import Any

import fsspec
import fsspec.implementations.cached

Found = list[Any]
TARS = [f"{number:04}.tar" for number in range(4)]


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def reading(base: str) -> Found:
    """Seeks, ranges, whole files, tars as a stream and by seeking, several at once."""
    url = f"{base}/{TARS[0]}"
    fs, path = fsspec.url_to_fs(url)
    with fsspec.open(url, "rb") as file:
        file.seek(1000)
        pieces = [file.read(5000), file.read(100)]
        file.seek(-700, 2)
        pieces.append(file.read())
        file.seek(3)
        pieces += [file.read(1), file.read(0), file.read()]
    ranges = fs.cat_ranges([path] * 3, [0, 10, 100_000], [5, 20, 100_100])
    found: Found = [[sha(piece) for piece in pieces], [sha(each) for each in ranges], fs.size(path), fs.exists(path)]
    found += [sha(fs.cat_file(path, 5, 500)), sha(fs.cat_file(path, -100)), fs.exists(path.replace("0000", "none"))]
    for mode in ("r:", "r|"):
        with fsspec.open(url, "rb") as file, tarfile.open(fileobj=file, mode=mode) as tar:
            found.append(sha(b"".join(tar.extractfile(member).read() for member in tar if member.isfile())))  # type: ignore[union-attr]
    with fsspec.open_files([f"{base}/{name}" for name in TARS], "rb") as files:
        found.append([sha(file.read()) for file in files])
    return [*found, sorted(sha(data) for data in fs.cat([path.replace("0000", name[:4]) for name in TARS]).values())]


def missing(base: str) -> Found:
    try:
        with fsspec.open(f"{base}/none.tar", "rb") as file:
            file.read()
    except FileNotFoundError as error:
        return [type(error).__name__]
    return []


def datasets(base: str) -> Found:
    """Hugging Face's reader of WebDataset tars, as a stream."""
    import datasets as library

    library.disable_progress_bars()
    files = [f"{base}/{name}" for name in TARS]
    samples = library.load_dataset("webdataset", data_files={"train": files}, split="train", streaming=True)
    samples = samples.remove_columns("__url__")
    return [sha(repr(sorted((key, value) for key, value in sample.items())).encode()) for sample in samples]


def pandas(base: str) -> Found:
    import pandas as library

    frame = library.read_parquet(f"{base}/x.parquet", columns=["b"])
    return [len(frame), int(frame["b"].sum())]


def pyarrow(base: str) -> Found:
    import pyarrow.dataset as dataset
    import pyarrow.fs
    import pyarrow.parquet as parquet

    fs, path = fsspec.url_to_fs(f"{base}/x.parquet")
    with fsspec.open(f"{base}/x.parquet", "rb") as file:
        groups = [parquet.ParquetFile(file).read_row_group(number).num_rows for number in (3, 0)]
    table = dataset.dataset([path], filesystem=pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs)), format="parquet").to_table(["b"])
    return [groups, table.num_rows, sum(table.column("b").to_pylist())]


def duckdb(base: str) -> Found:
    """It finds a file system by the scheme alone, so a name is written without chaining; and asks for a file's date."""
    import duckdb as library

    path = f"forebay://{base.removeprefix('forebay::').replace('://', '/')}/x.parquet"
    with library.connect(config={"autoinstall_known_extensions": False}) as connection:
        connection.register_filesystem(fsspec.filesystem("forebay"))
        return [[int(value) for value in connection.execute(f"SELECT count(*), sum(b) FROM read_parquet('{path}')").fetchall()[0]]]


PROGRAMS: dict[str, Callable[[str], Found]] = {
    program.__name__: program for program in (reading, missing, datasets, pandas, pyarrow, duckdb)
}


if __name__ == "__main__":
    from sidecar_bytes import tell  # beside this file, where it runs

    base, rounds = sys.argv[1:]
    tell(lambda prefix, name: PROGRAMS[name](f"{prefix}{base}/{name}"), rounds)
