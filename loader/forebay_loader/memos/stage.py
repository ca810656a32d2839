"""``fb.memo``: what an expensive stage or function made is kept on the disk, and given again."""

from __future__ import annotations

import inspect
import os
import re
from dataclasses import dataclass
from multiprocessing import parent_process
from typing import Any, Callable, List, Literal, Sequence, Union

from forebay_loader.base.counters import share_memo_counts
from forebay_loader.base.notices import notice_once
from forebay_loader.memos.errors import MemoRefused
from forebay_loader.memos.stores.choice import check_store

__all__ = ["MemoAsked", "bytes_of", "folded", "memo"]

_UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30, "TI": 1 << 40}
_LEAST = 1 << 20
EDITS = (
    "fb.memo looks at the function or class itself, and at what it holds: an edit elsewhere (a helper, a base class, another module, a "
    "file) needs another version=, and where a sample lies (__url__) counts only if key= names it"
)


def memo(
    *,
    store: Literal["lmdb", "npz", "hdf5"] = "lmdb",
    folder: Union[str, "os.PathLike[str]", None] = None,
    size: Union[str, int] = "20GB",
    key: Union[str, Sequence[str], Callable[[Any], Any], None] = None,
    version: Union[str, int, None] = None,
    random: Literal["refuse", "keep"] = "refuse",
) -> "MemoAsked":
    """Keep on disk what an expensive stage or function computes from a sample, and read it back instead of computing it again.

    In an ``fb.WebDataset`` it keeps the results of the stage before it. Called with a stage or a function, it keeps the results of that.

    A result is found by two digests. One is of the sample, the other of the transform: its name, its own code, its arguments and captured
    values at the time of use, and the version of its distribution. Only the function or class itself is compared. A change elsewhere (a
    helper, a base class, another module, a file) needs another ``version=``. Where a sample comes from (``__url__``) counts only if
    ``key=`` names it. Results come back bit for bit; a value that cannot be kept so is refused by its name. Training never waits for a
    write, and a full disk never ends it. ``fb.counters()`` counts ``memo_hits`` and errors.

    Args:
        store: ``"lmdb"``, ``"npz"`` or ``"hdf5"``.
        folder: The folder of this store alone, on a local disk. The default lies in ``$XDG_CACHE_HOME/forebay-memo``, or in ``~/.cache``.
        size: The most that it may take, in bytes or as ``"200GB"``.
        key: The part of a sample that decides its result: a member's name, several names, or a function that returns plain values. None
            means all members.
        version: A text or number that replaces the digest of the code. Change it when you change the code. Needed for objects that cannot
            be compared.
        random: A transform that draws random numbers: ``"refuse"`` it, or ``"keep"`` what it drew first.

    Returns:
        A stage for ``.compose``, which is a decorator too.

    Raises:
        TypeError: An argument has the wrong kind, or a value cannot be kept.
        ValueError: An argument has a value that cannot be.
        ModuleNotFoundError: The store's package is not installed.
        RuntimeError: While it is read: the folder holds something else, or other users could replace it.
        LookupError: While it is read: a sample lacks a member that ``key=`` names. The handler of the stage, else of the data set, gets it.

    Examples:
        >>> dataset = fb.WebDataset(urls).compose(fb.video("uniform(8)", size=224), fb.memo(folder="frames", size="200GB"))
        >>> stage = fb.memo(key="mp4", folder="clips")(fb.video("uniform(8)"))
        >>> @fb.memo(store="npz", folder="lengths")
        ... def with_length(sample):
        ...     return {**sample, "length": len(sample["bin"])}
        >>> next(iter(fb.WebDataset(urls).map(with_length)))["length"]
        3000
    """
    check_store(store)
    if random not in ("refuse", "keep"):
        raise ValueError(f"random takes 'refuse' or 'keep'; got {random!r}")
    if version is not None and (isinstance(version, bool) or not isinstance(version, (str, int))):
        raise TypeError(f"version takes a text or a number; got {version!r}")
    are_names = isinstance(key, (list, tuple)) and bool(key) and all(isinstance(one, str) for one in key)
    if not (key is None or isinstance(key, str) or callable(key) or are_names):
        raise TypeError(f"key takes the name of a member, several, or a function of a sample; got {key!r}")
    return MemoAsked(store, None if folder is None else os.path.abspath(os.fspath(folder)), bytes_of(size), key, version, random == "keep")


@dataclass(frozen=True)
class MemoAsked:
    """What ``fb.memo`` was asked for, before it is known of what."""

    store: str
    folder: Union[str, None]
    size_bytes: int
    naming: Any
    version: Union[str, int, None]
    keeps_draws: bool

    def __call__(self, transform: Any, handler: Any = None) -> Any:
        """``transform`` with a memory; ``handler`` is the data set's. Raises ``MemoRefused`` for what is neither a stage that gives one for
        one nor a function."""
        from forebay_loader.memos.memo_stage import MemoFunction, MemoStage  # noqa: PLC0415  # numpy
        from forebay_loader.resume.known_stages import kind_of  # noqa: PLC0415  # webdataset

        if kind_of(transform) == "one":
            if getattr(transform, "draws", False) and not self.keeps_draws:
                raise MemoRefused(
                    f"{transform!r} draws by the epoch, and a memo would give what it drew first for ever: choose frames that do not "
                    "differ by epoch, or say fb.memo(…, random='keep')"
                )
            made = MemoStage(self.results(transform), handler)
            made.results.transform_now()  # what is refused is refused here
            return made
        if (
            kind_of(transform)
            or hasattr(transform, "state_kind")
            or hasattr(transform, "kw")
            or hasattr(transform, "__next__")
            or not callable(transform)
        ):
            raise MemoRefused(
                f"fb.memo keeps what a function of one sample makes, or a stage that gives one for one, and {transform!r} is neither. In a "
                "wds.DataPipeline give it the stage: fb.memo(…)(stage)"
            )
        if inspect.isgeneratorfunction(inspect.unwrap(transform)):
            raise MemoRefused(
                f"{transform!r} is a generator, and may give more or fewer than one for one: write it as a function of one sample"
            )
        return MemoFunction(self.results(transform))

    def results(self, transform: Any) -> Any:
        """Where results of ``transform`` lie."""
        from forebay_loader.memos.memo_results import MemoResults  # noqa: PLC0415  # numpy
        from forebay_loader.memos.opened_memo import MemoPlace  # noqa: PLC0415
        from forebay_loader.memos.stores.choice import default_folder  # noqa: PLC0415

        place = MemoPlace(self.store, os.path.realpath(self.folder or default_folder(self.store)), self.size_bytes)
        named = (self.naming,) if isinstance(self.naming, str) else self.naming
        naming = tuple(named) if isinstance(named, list) else named
        if self.version is None and parent_process() is None:
            notice_once("memo-version", EDITS)
        return MemoResults(place, transform, self.version, naming, self.keeps_draws, share_memo_counts())


def folded(stages: Sequence[Any], handler: Any = None) -> List[Any]:
    """``stages`` with each ``fb.memo`` around the stage before it; ``handler`` is the data set's. Raises ``MemoRefused`` where
    there is none that gives one for one."""
    found: List[Any] = []
    for stage in stages:
        if isinstance(stage, MemoAsked):
            found.append(stage(found.pop(), handler))
        else:
            found.append(stage)
    return found


def bytes_of(size: Any) -> int:
    """What ``size=`` says. Raises ``TypeError``, ``ValueError``."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", size.upper()) if isinstance(size, str) else None
    if found is not None and found[2] in _UNITS:
        size = int(float(found[1]) * _UNITS[found[2]])
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"size takes bytes, or a text such as '200GB'; got {size!r}")
    if size < _LEAST:
        raise ValueError(f"size takes a MiB at least; got {size} bytes")
    return size
