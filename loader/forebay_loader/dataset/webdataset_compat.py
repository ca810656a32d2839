"""Parts that depend on the installed webdataset: sources other than a list of shards, its splitters, and ``with_length``.

webdataset's own ``with_length`` gives an object a class that cannot be found by name, so the object cannot be pickled. Ours can.
"""

from __future__ import annotations

import copyreg
import inspect
from collections.abc import Iterable
from functools import lru_cache, partial
from typing import Any, Optional, TypeVar
from urllib.parse import urlsplit

from webdataset import shardlists
from webdataset.compat import WebDataset
from webdataset.pytorch import IterableDataset

from forebay_loader.base.notices import notice_once
from forebay_loader.dataset.arguments import Arguments
from forebay_loader.dataset.shard_list import NodeSplit
from forebay_loader.identity.world import World

__all__ = ["POSITIONAL", "group_of", "listed", "node_stage", "picklable_length", "stock_source", "with_length"]


_PARAMETERS = tuple(inspect.signature(WebDataset.__init__).parameters)
POSITIONAL = _PARAMETERS[3:]  # the arguments after self, urls and handler in this version
_READS_FOLDERS = hasattr(WebDataset, "create_url_iterator")  # 1.x: a URL that ends in / is a folder
_NO_SPLITTER = (None, False, shardlists.single_node_only)


def listed(urls: Any) -> Optional[list[str]]:
    """All shards in ``urls``; None if it is no list of shards. An empty list raises ``ValueError``. A repeated shard is only logged."""
    if isinstance(urls, (dict, IterableDataset)) or (isinstance(urls, str) and _is_description(urls)):
        return None
    if not isinstance(urls, (str, Iterable)) or isinstance(urls, bytes):
        raise ValueError(f"cannot handle urls of type {type(urls)}: a pattern, or a list of URLs, is taken")
    found = list(shardlists.expand_urls(urls) if isinstance(urls, str) else urls)
    if not any(found):
        raise ValueError(f"the list of shards is empty: {'the pattern names' if isinstance(urls, str) else 'there is'} no shard")
    for at, url in enumerate(found):
        if not isinstance(url, str):
            raise TypeError(f"a shard is named by a string; entry {at} of {len(found)} is {type(url).__name__}")
    _tell_repeated(found)
    return found


def node_stage(nodesplitter: Any, world: World, draws: bool) -> Any:
    """The stage that gives a rank its share; None if none is needed, since with resampling each rank makes its own draws."""
    known = nodesplitter in _NO_SPLITTER or _is_split_by_node(nodesplitter)
    if known:
        return None if draws else NodeSplit(world, named=nodesplitter not in _NO_SPLITTER)
    return nodesplitter


def group_of(nodesplitter: Any) -> Any:
    """The process group in ``functools.partial(wds.split_by_node, group=…)``."""
    return nodesplitter.keywords.get("group") if isinstance(nodesplitter, partial) and _is_split_by_node(nodesplitter) else None


def stock_source(asked: Arguments, splitter: Any) -> list[Any]:
    """The stages of webdataset's own data set before the one that opens shards."""
    if isinstance(asked.urls, IterableDataset):  # it splits its shards itself, as in webdataset 0.2.86
        return [asked.urls]
    wanted: dict[str, Any] = {"mode": asked.mode, "resampled": asked.draws, "detshuffle": asked.detshuffle}
    wanted["shardshuffle"] = asked.shardshuffle or False
    wanted |= {"nodesplitter": splitter, "workersplitter": asked.workersplitter, "seed": asked.seed_number}
    made = WebDataset(asked.urls, **{name: value for name, value in wanted.items() if name in _PARAMETERS})
    stages: list[Any] = made.pipeline
    return stages[: next(at for at, stage in enumerate(stages) if _opens(stage))]


def _is_description(urls: str) -> bool:
    return urls.endswith((".yaml", ".yml")) or (_READS_FOLDERS and (urls.endswith(".json") or urlsplit(urls).path.endswith("/")))


def _is_split_by_node(splitter: Any) -> bool:
    return splitter is shardlists.split_by_node or (isinstance(splitter, partial) and splitter.func is shardlists.split_by_node)


def _opens(stage: Any) -> bool:
    curried = getattr(getattr(stage, "f", None), "__name__", "")  # 0.2.86 opens and reads in one stage
    return type(stage).__name__ in ("StreamingOpen", "FileCache") or curried in ("tarfile_samples", "cached_tarfile_samples")


def _tell_repeated(urls: list[str]) -> None:
    seen: dict[str, int] = {}
    again = [(at, seen.setdefault(url, at)) for at, url in enumerate(urls) if seen.setdefault(url, at) != at]
    if again:  # named by number: a URL may hold a token
        at, first = again[0]
        text = f"{len(again)} of {len(urls)} shards are listed again (entry {at} is entry {first}); each pass reads each as often"
        notice_once(f"repeated-{len(urls)}-{len(again)}-{at}-{first}", text)


T = TypeVar("T")


def with_length(made: T, n: int) -> T:
    """Make ``len(made) == n`` and return ``made``. Nothing else about it changes."""
    made.size = n  # type: ignore[attr-defined]
    made.__class__ = _sized(_plain(type(made)))
    return made


def picklable_length(made: T) -> T:
    """Return ``made``. If webdataset's ``with_length`` was called on it, change it in place so that it can be pickled."""
    plain = _plain(type(made))
    if plain is not type(made):
        made.__class__ = _sized(plain)
    return made


def _plain(cls: type) -> type:
    """The class as it was before ``with_length``, ours or webdataset's."""
    while cls.__name__.endswith("_Length") and cls.__qualname__ == cls.__name__ and "__len__" in vars(cls):
        cls = cls.__bases__[0]
    return cls


@lru_cache(maxsize=None)
def _sized(cls: type) -> type:
    return type(f"{cls.__name__}_Length", (cls,), {"__len__": _length, "__reduce_ex__": _reduce, "__module__": cls.__module__})


def _length(self: Any) -> int:
    return int(self.size)


def _reduce(self: Any, protocol: int) -> Any:
    """Pickle as an object of the plain class. Unpickling gives it the class with a length again."""
    plain = _plain(type(self))
    state = self.__getstate__() if hasattr(self, "__getstate__") else self.__dict__
    return _rebuilt, (plain,), state


def _rebuilt(cls: type) -> Any:
    return copyreg.__newobj__(_sized(cls))  # type: ignore[attr-defined]
