"""Which store, by its name; each package is asked for where it is wanted, and its lack is said in words."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from forebay_loader.memos.stores.memo_folder import take_folder

if TYPE_CHECKING:
    from forebay_loader.memos.stores.memo_store import MemoStore  # with it numpy, which not everybody has

__all__ = ["STORES", "check_store", "opened_store"]

STORES = {"lmdb": "lmdb", "npz": "numpy", "hdf5": "h5py"}  # name -> the package that it needs


def check_store(kind: str) -> None:
    """Raises ``ValueError`` for another name, ``ModuleNotFoundError`` naming the extra where a package is missing."""
    if kind not in STORES:
        raise ValueError(f"store takes {', '.join(map(repr, STORES))}; got {kind!r}")
    for package in (STORES[kind], "numpy", "xxhash"):
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(f"store={kind!r} needs {package}: install forebay[memo]", name=package)


def opened_store(kind: str, folder: str, size_bytes: int) -> "MemoStore":
    """The store in ``folder``, which is made. Raises ``MemoError`` where the folder is of something else, and ``OSError``."""
    if kind == "lmdb":
        from forebay_loader.memos.stores.lmdb_store import LmdbStore, parts_of  # noqa: PLC0415

        told = take_folder(folder, {"store": kind, "parts": parts_of(size_bytes)})
        return LmdbStore(folder, size_bytes, int(told["parts"]))
    take_folder(folder, {"store": kind})
    if kind == "npz":
        from forebay_loader.memos.stores.npz_store import NpzStore  # noqa: PLC0415

        return NpzStore(folder)
    from forebay_loader.memos.stores.hdf5_store import Hdf5Store  # noqa: PLC0415

    return Hdf5Store(folder)
