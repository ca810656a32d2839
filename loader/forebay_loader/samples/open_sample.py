"""The sample that is still open: files that follow one another under one key are its own, as webdataset's ``group_by_keys`` has it."""

from __future__ import annotations

from typing import Any, Dict, Iterator, Optional, Set

from forebay_loader.base.counters import COUNTS
from forebay_loader.meter.skips.recorded_handler import Handler, Place, RecordedHandler, asked
from forebay_loader.samples.faults import TarFault, tell_faults
from forebay_proxy.wire.tar.sample_index import split_name

__all__ = ["MOST_KEYS", "LeaveReading", "OpenSample", "Sample", "reraise"]

Sample = Dict[str, Any]

MOST_KEYS = 1 << 16  # of one shard that are compared with those behind them: some 6 MB


class LeaveReading(Exception):
    """The handler wants out: with ``error`` raised, or quietly."""

    def __init__(self, error: Optional[BaseException]) -> None:
        super().__init__()
        self.error = error


class OpenSample:
    """``sample`` is None where none is open; ``stem`` is its key as the headers spell it, None if that is not known."""

    def __init__(self, handler: Handler) -> None:
        """``handler`` is given each file that does not fit its sample. True: the next file. False: reading ends."""
        self.sample: Optional[Sample] = None
        self.stem: Optional[bytes] = None
        self.odd = False  # a member was named ….__bad__: webdataset drops such samples
        self._handler = handler
        self.begin_shard("", "")

    def begin_shard(self, shard: str, url: Any) -> None:
        """Files of ``shard`` follow."""
        self.seen: Set[Any] = set()  # keys of its samples, as the headers spell them where that is known
        self._shard, self._url = shard, url
        self._torn = False

    def again(self, key: str) -> None:
        """The sample ``key`` begins, and another one of that key came before."""
        COUNTS.add("torn_samples")
        if not self._torn:
            self._torn = True
            self.tell(tell_faults(self._shard, "some", 0), key)

    def tell(self, fault: TarFault, key: Any) -> None:
        """List ``fault`` of the present shard, which nobody passes over."""
        if isinstance(self._handler, RecordedHandler):
            self._handler.told(fault, Place("read", "file", self._url, key, "tar_file_iterator"))

    def add(self, name: Any, value: Any, url: Any, local_path: Any) -> Iterator[Sample]:
        """One file; the sample before it, where that is complete now. Raises ``LeaveReading``."""
        try:
            key, suffix = split_name(name)
        except Exception as error:  # rename_files gave no string
            return self._refuse(error, name, url)
        if key is None:
            return
        if self.sample is None or key != self.sample["__key__"]:
            yield from self.flush()
            self.sample = {"__key__": key, "__url__": url}
            self._see(key)
        if suffix in self.sample:
            text = f"{name}: duplicate file name in tar file {suffix} {self.sample.keys()}"
            return self._refuse(ValueError(text), key, url)
        self.sample[suffix] = value
        self.odd = self.odd or suffix == "__bad__"
        if local_path is not None:
            self.sample["__local_path__"] = local_path
        self.stem = _stem_of(key)  # from its first file on, which brings the path: the hot loop only adds files

    def _see(self, key: str) -> None:
        stem = _stem_of(key) or key
        if stem in self.seen:
            self.again(key)
        elif len(self.seen) < MOST_KEYS:
            self.seen.add(stem)

    def _refuse(self, error: Exception, key: Any, url: Any) -> None:
        error.args = (*error.args, key, url)  # webdataset has the place for them, and leaves it empty
        try:
            goes_on = asked(self._handler, error, Place("read", "file", url, key, "group_by_keys"))
        except Exception as raised:
            raise LeaveReading(raised) from None
        if not goes_on:
            raise LeaveReading(None)

    def flush(self) -> Iterator[Sample]:
        """The sample, complete as it is; none is open then."""
        sample, self.sample, self.stem = self.sample, None, None
        if sample is not None and not sample.get("__bad__"):
            yield sample


def _stem_of(key: str) -> Optional[bytes]:
    """How the headers spell ``key`` if that is plain text, and no member with it can be about the shard (``__key.x__`` is), or a twin."""
    try:
        return None if key.startswith("__") or key.endswith("/") else key.encode()
    except UnicodeEncodeError:
        return None


def reraise(error: Exception) -> bool:
    """The handler of those who gave none."""
    try:
        raise error
    finally:
        del error  # its traceback leads to this frame: a cycle that would hold all frames below it
