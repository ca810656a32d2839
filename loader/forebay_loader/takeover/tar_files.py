"""Tars that webdataset reads itself, in pipelines that users build of its stages: they get the checks of ``samples.tar``.

A link to an earlier member yields the bytes of that member. A Mac's ``._`` files are left out. A cut tar raises an error that names the
shard. A key that occurs again later in its shard is reported.

``tariterators`` opens each tar as ``tarfile.open``. So its global ``tarfile`` is replaced by an object with an ``open`` of ours.
"""

from __future__ import annotations

import copy
import functools
import io
import tarfile
from typing import Any, Callable, FrozenSet, Iterator, Optional, Set, Tuple

from forebay_loader.base.counters import COUNTS
from forebay_loader.meter.skips.recorded_handler import Place, RecordedHandler
from forebay_loader.meter.skips.skip_pass import lone_pass
from forebay_loader.samples.faults import MEND, TarFault, cut_in, named, tell_faults
from forebay_loader.samples.open_sample import MOST_KEYS, reraise
from forebay_loader.samples.tar import LINKS_GONE, reads_again
from forebay_loader.stream.webdataset_openers import enabled
from forebay_proxy.wire.tar.members import Links, Walk, links_before
from forebay_proxy.wire.tar.sample_index import is_meta, is_twin, split_name

__all__ = ["take_tars"]


def take_tars(module: Any) -> None:
    """Make ``webdataset.tariterators`` open tars through this module."""
    if module.tarfile is tarfile:
        module.tarfile = _Opening()
        module.tar_file_iterator = _watching(module.tar_file_iterator)


class _Opening:
    """Stands in for the module ``tarfile``."""

    def __getattr__(self, name: str) -> Any:
        return getattr(tarfile, name)

    def open(self, *args: Any, **how: Any) -> Any:
        if enabled() is None or how.get("mode") != "r|*" or "fileobj" not in how:
            return tarfile.open(*args, **how)
        shard, again = named(how["fileobj"], ""), reads_again(how["fileobj"])
        try:
            found = _TakenTar.open(*args, **how)
        except tarfile.ReadError as error:
            raise _fault(shard, error) from None
        found.shard, found.again = shard, again if getattr(found.fileobj, "comptype", "") == "tar" else None
        return found


class _TakenTar(tarfile.TarFile):
    """A tar as a stream. ``again`` reads bytes at a position of it; None if that is not possible."""

    shard = ""
    again: Optional[Callable[[int, int], bytes]] = None
    _links: Optional[Links] = None
    _given: Optional[Tuple[tarfile.TarInfo, Tuple[int, int]]] = None  # the latest link, and the place of its bytes
    _lost = False
    _key: Optional[str] = None  # of the current sample
    _suffixes: FrozenSet[str] = frozenset()  # of its files

    def __iter__(self) -> Iterator[tarfile.TarInfo]:
        members = super().__iter__()
        while True:
            try:
                found = next(members, None)
            except tarfile.ReadError as error:
                raise _fault(self.shard, error) from None
            if found is None:
                return
            if self._links is not None and found.isreg():
                self._links.note(found.name, found.offset_data, found.size)
            if found.islnk() or found.issym():
                found = self._linked(found)
            elif is_twin(found.name):
                found = copy.copy(found)  # webdataset leaves out folders
                found.type = tarfile.DIRTYPE
            key, suffix = split_name(found.name) if found.isreg() and not is_meta(found.name) else (None, "")
            if key is not None:
                self._suffixes = (self._suffixes if key == self._key else frozenset()) | {suffix}
                self._key = key
            yield found

    def extractfile(self, member: Any) -> Any:
        if self._given is not None and member is self._given[0] and self.again is not None:
            return io.BytesIO(self.again(*self._given[1]))
        return _Whole(self, member, super().extractfile(member))

    def _linked(self, link: tarfile.TarInfo) -> tarfile.TarInfo:
        """Return ``link`` as a regular file if its bytes can be read. Otherwise return the link itself, and report
        it once for each shard.
        """
        key, suffix = split_name(link.name)
        member = place = None
        if self.again is not None:
            if self._links is None:
                self._links = links_before(self.again, link.offset)
            member = Walk(self.again).member(link.offset)
            place = self._links.place(member) if member is not None and member.target else None
            if member is None or not member.target:  # to itself
                return link
        if key is None or is_meta(link.name) or (key == self._key and suffix in self._suffixes):
            return link
        if place is None:
            COUNTS.add("links_left_out")
            if not self._lost:
                self._lost = True
                _tell(tell_faults(self.shard, 0, "some", "" if self.again is not None else LINKS_GONE), self.shard, link.name)
            return link
        found = copy.copy(link)
        found.type, found.size = tarfile.REGTYPE, place[1]
        self._given = found, place
        return found


class _Whole:
    """A member's file, which is read in one call."""

    def __init__(self, tar: Any, member: Any, file: Any) -> None:
        self._tar, self._member, self._file = tar, member, file

    def read(self) -> bytes:
        try:
            return bytes(self._file.read())
        except tarfile.ReadError:
            member, at = self._member, self._member.offset_data
            raise cut_in(self._tar.shard, member.name, at, member.size, self._tar.fileobj.pos - at) from None


def _fault(shard: str, error: tarfile.ReadError) -> TarFault:
    """The message of ``tarfile``, with the shard and the next step."""
    cut = "unexpected end" in str(error)
    return TarFault(f"shard {shard}: {error}{f'. {MEND}' if cut else '; `forebay check URL` says what it is'}")


def _watching(stock: Callable[..., Iterator[Any]]) -> Callable[..., Iterator[Any]]:
    """Wrap ``tar_file_iterator``: keys that occur again are reported."""

    @functools.wraps(stock)
    def tar_file_iterator(fileobj: Any, *args: Any, **how: Any) -> Iterator[Any]:
        files = stock(fileobj, *args, **how)
        return files if enabled() is None else map(_Keys(named(fileobj, "")).see, files)  # map adds no Python frame above the handlers

    return tar_file_iterator


class _Keys:
    """The keys of one shard."""

    def __init__(self, shard: str) -> None:
        self._shard = shard
        self._seen: Set[str] = set()
        self._last: Optional[str] = None
        self._torn = False

    def see(self, file: Any) -> Any:
        """Check the key of ``file``, and return ``file``."""
        key, _ = split_name(file["fname"])
        if key is None or key == self._last:
            return file
        self._last = key
        if key in self._seen:
            COUNTS.add("torn_samples")
            if not self._torn:
                self._torn = True
                _tell(tell_faults(self._shard, "some", 0), self._shard, key)
        elif len(self._seen) < MOST_KEYS:
            self._seen.add(key)
        return file


def _tell(fault: TarFault, shard: str, key: str) -> None:
    RecordedHandler(reraise, lone_pass()).told(fault, Place("read", "file", shard, key, "tar_file_iterator"))
