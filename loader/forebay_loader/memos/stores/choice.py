"""Which store, by its name; each package is asked for where it is wanted, and its lack is said in words."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay_loader.memos.entry import MemoStore  # with it numpy, which not everybody has

import json
import os
import stat
from typing import Any, Dict

from forebay_loader.memos.errors import MemoError

__all__ = ["FORMAT", "STORES", "check_store", "default_folder", "opened_store", "take_folder"]


# The folder of a store: private, and marked with what lies in it.
FORMAT = 1
_MARK = "memo.json"


def default_folder(kind: str) -> str:
    """``$XDG_CACHE_HOME/forebay-memo/KIND``, or that below ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "forebay-memo", kind)


def take_folder(path: str, made: Dict[str, Any], of: str = "fb.memo") -> Dict[str, Any]:
    """Make the folder, or look whether it is one of ours; what its mark says, which is ``made`` in a new one.

    ``made`` has the ``store``; ``of``: who asks. Raises ``MemoError`` for a folder of somebody else's, of another store or format;
    ``OSError``.
    """
    os.makedirs(path, mode=0o700, exist_ok=True)
    state = os.stat(path)
    if state.st_uid != os.geteuid() or stat.S_IMODE(state.st_mode) & 0o022:
        raise MemoError(f"the folder {path} belongs to another user, or others may write to it: give {of}(…, folder=…)")
    _check_above(path, of)
    if stat.S_IMODE(state.st_mode) != 0o700:
        os.chmod(path, 0o700)
    mark = os.path.join(path, _MARK)
    if not os.path.exists(mark):
        if any(not name.startswith(f".{_MARK}") for name in os.listdir(path)) and not os.path.exists(mark):
            raise MemoError(f"the folder {path} holds other files: give {of}(…, folder=…) an empty one, or one that is not there yet")
        _write(mark, {"format": FORMAT, **made})
    try:
        with open(mark, encoding="utf-8") as file:
            found = json.load(file)
        told = (found["format"], found["store"])
    except (ValueError, KeyError, TypeError) as error:
        raise MemoError(f"{mark} is damaged: remove the folder, what is in it is made again") from error
    if told != (FORMAT, made["store"]):
        raise MemoError(
            f"the folder {path} is that of a store {told[1]!r} of format {told[0]!r}, and not of {made['store']!r}, {FORMAT}: "
            f"give {of}(…, folder=…) another one, or remove it"
        )
    return dict(found)


def _check_above(path: str, of: str) -> None:
    """Whoever may write to a folder above may put another one in this one's place. Raises ``MemoError``."""
    while path != os.path.dirname(path):
        path = os.path.dirname(path)
        state = os.stat(path)
        if state.st_uid not in (0, os.geteuid()) or (state.st_mode & 0o022 and not state.st_mode & stat.S_ISVTX):
            raise MemoError(
                f"{path} (uid {state.st_uid}, mode {stat.S_IMODE(state.st_mode):o}) belongs to another user, or others may write to it, "
                f"and could put another folder in its place: give {of}(…, folder=…) one below folders that are yours or root's "
                "and that nobody else may write to, or that have the sticky bit (chmod +t)"
            )


def _write(mark: str, told: Dict[str, Any]) -> None:
    """By whichever process comes first: the link fails where there is one."""
    mine = os.path.join(os.path.dirname(mark), f".{_MARK}.{os.getpid()}")
    with open(mine, "w", encoding="utf-8") as file:
        json.dump(told, file)
    try:
        os.link(mine, mark)
    except FileExistsError:
        pass
    finally:
        os.unlink(mine)


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
    from forebay_loader.memos.stores.file_store import FileStore  # noqa: PLC0415

    return FileStore(kind, folder, size_bytes)
