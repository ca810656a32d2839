"""``fb.memo``: what an expensive stage or function made is kept on the disk, and given again."""

from __future__ import annotations

import inspect
import os
import re
from dataclasses import dataclass
from multiprocessing import parent_process
from typing import Any, Callable, List, Sequence, Union

from forebay_loader.base.counters import share_memo_counts
from forebay_loader.base.notices import notice_once
from forebay_loader.memos.errors import MemoRefused
from forebay_loader.memos.stores.choice import check_store

__all__ = ["MemoAsked", "folded", "memo"]

_UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4, "KI": 1 << 10, "MI": 1 << 20, "GI": 1 << 30, "TI": 1 << 40}
_LEAST = 1 << 20
EDITS = (
    "fb.memo looks at the function or class itself, and at what it holds: an edit elsewhere (a helper, a base class, another module, a "
    "file) needs another version=, and where a sample lies (__url__) counts only if key= names it"
)


def memo(
    *,
    store: str = "lmdb",
    folder: Union[str, "os.PathLike[str]", None] = None,
    size: Union[str, int] = "20GB",
    key: Union[str, Sequence[str], Callable[[Any], Any], None] = None,
    version: Union[str, int, None] = None,
    random: str = "refuse",
) -> "MemoAsked":
    """Keep on the disk what an expensive stage, or a function of one sample, makes, and give it again instead of making it.

    Example::

        dataset = fb.WebDataset(urls).compose(fb.video("uniform(8)", size=224), fb.memo(folder="/ssd/frames", size="200GB"))
        dataset = wds.DataPipeline(*sources, fb.memo(key="mp4")(fb.video("uniform(8)")))    # the stage given

        @fb.memo(store="npz", folder="/ssd/flow")
        def with_flow(sample):
            return {**sample, "flow": optical_flow(sample["frames"])}    # a function of your own

        dataset = dataset.map(with_flow)

    In an ``fb.WebDataset`` it keeps what the stage before it makes; called with a stage or a function, it keeps what that makes. A
    result is found by a digest of the sample and one of the transform: its name, its own code, its arguments and captured values as they
    are when it is used, and the version of its distribution. Only the function or class itself is looked at: an edit elsewhere (a helper,
    a base class, another module, a file) needs another ``version=``, and where a sample lies (``__url__``) counts only if ``key=`` names
    it. What is kept comes back bit for bit; what cannot be kept so is refused by its name. Training never waits for a write, and never
    ends for a full disk.

    - ``store``: ``"lmdb"``, ``"npz"`` or ``"hdf5"``.
    - ``folder``: of this store alone, on a local disk; without it one in ``$XDG_CACHE_HOME/forebay-memo``, or ``~/.cache``.
    - ``size``: how much it may take, in bytes or as ``"200GB"``.
    - ``key``: what of a sample tells its result: the name of a member, several names, or a function that answers with plain values; None
      for all members.
    - ``version``: a text or number in place of the code, which you change with it; for objects that cannot be compared, too.
    - ``random``: ``"refuse"`` a transform that draws random numbers, or ``"keep"`` what it drew first.

    Raises ``TypeError`` and ``ValueError`` for arguments and for what cannot be kept, ``ModuleNotFoundError`` without the store's package;
    while it is read ``RuntimeError`` where the folder is of something else or others could replace it, and ``LookupError``, about which
    the stage's handler is asked, else the data set's, for a sample without a member that ``key=`` names. ``fb.counters()`` counts
    ``memo_hits`` and what went wrong, of this process and its workers.
    """
    check_store(store)
    if random not in ("refuse", "keep"):
        raise ValueError(f"random takes 'refuse' or 'keep'; got {random!r}")
    if version is not None and (isinstance(version, bool) or not isinstance(version, (str, int))):
        raise TypeError(f"version takes a text or a number; got {version!r}")
    are_names = isinstance(key, (list, tuple)) and bool(key) and all(isinstance(one, str) for one in key)
    if not (key is None or isinstance(key, str) or callable(key) or are_names):
        raise TypeError(f"key takes the name of a member, several, or a function of a sample; got {key!r}")
    return MemoAsked(store, None if folder is None else os.path.abspath(os.fspath(folder)), _bytes_of(size), key, version, random == "keep")


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


def _bytes_of(size: Any) -> int:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", size.upper()) if isinstance(size, str) else None
    if found is not None and found[2] in _UNITS:
        size = int(float(found[1]) * _UNITS[found[2]])
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"size takes bytes, or a text such as '200GB'; got {size!r}")
    if size < _LEAST:
        raise ValueError(f"size takes a MiB at least; got {size} bytes")
    return size
