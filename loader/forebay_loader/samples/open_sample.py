"""The sample that is still open: files that follow one another under one key are its own, as webdataset's ``group_by_keys`` has it."""

from __future__ import annotations

from typing import Any, Dict, Iterator, Optional

from forebay_loader.meter.skips.recorded_handler import Handler, Place, asked
from forebay_proxy.wire.tar.sample_name import split_name

__all__ = ["LeaveReading", "OpenSample", "Sample", "reraise"]

Sample = Dict[str, Any]


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
        if suffix in self.sample:
            text = f"{name}: duplicate file name in tar file {suffix} {self.sample.keys()}"
            return self._refuse(ValueError(text), key, url)
        self.sample[suffix] = value
        self.odd = self.odd or suffix == "__bad__"
        if local_path is not None:
            self.sample["__local_path__"] = local_path
        self.stem = _stem_of(key)  # from its first file on, which brings the path: the hot loop only adds files

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
    """How the headers spell ``key`` if that is plain text, and no member with it can be about the shard (``__key.x__`` is)."""
    try:
        return None if key.startswith("__") else key.encode()
    except UnicodeEncodeError:
        return None


def reraise(error: Exception) -> bool:
    """The handler of those who gave none."""
    try:
        raise error
    finally:
        del error  # its traceback leads to this frame: a cycle that would hold all frames below it
