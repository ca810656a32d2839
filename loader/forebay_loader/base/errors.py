"""What can go wrong on the training side: one small tree, made to survive a DataLoader worker.

All are ``OSError`` because that is what a broken ``curl`` gave before, so handlers written for it keep working. A DataLoader rebuilds a
worker's exception in the main process from one string, hence one positional argument. The text is ours alone: webdataset appends the
shard's URL to ``args``, and that URL may hold a token.
"""

from __future__ import annotations

import errno
import resource
from typing import Optional

__all__ = [
    "LoaderError",
    "NotResumable",
    "ProxyUnreachable",
    "ShardChanged",
    "ShardReadError",
    "StepsError",
    "TooManySkips",
    "check_descriptors",
]


class LoaderError(OSError):
    """Base of all. ``str()`` is the message alone, whatever is appended to ``args`` later."""

    def __init__(self, text: str = "") -> None:
        super().__init__(text)
        self._text = text

    def __str__(self) -> str:
        return self._text

    def follows(self, causes: list[str]) -> None:
        """Say also what was tried before: a last way's "exit code 6" alone helps nobody."""
        if causes:
            self._text = f"{self._text} (before that {'; '.join(causes)})"
            self.args = (self._text, *self.args[1:])


class ProxyUnreachable(LoaderError):
    """The sidecar is gone, or hangs beyond all patience, and nothing else gives these bytes, as for a bare ``s3://`` URL."""


class ShardReadError(LoaderError):
    """A shard cannot be read: refused, absent, or cut short by every way there is. ``status`` is the HTTP status, 0 without one."""

    def __init__(self, text: str = "", status: int = 0) -> None:
        super().__init__(text)
        self.status = status


def check_descriptors(shard: str, error: Optional[BaseException]) -> None:
    """Raise ``ShardReadError`` where ``error`` came of a process that may open no more files: no way to the bytes is any better."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            what = (
                f"this process has all of the {limit:,} files open that it may"
                if error.errno == errno.EMFILE
                else "this machine has too many files open"
            )
            raise ShardReadError(
                f"shard {shard}: {what} ({errno.errorcode[error.errno]}); raise the limit ('ulimit -n'), or read from fewer shards at once"
            )
        error = error.__cause__ or error.__context__


class ShardChanged(ShardReadError):
    """The shard holds other bytes now than when reading it began; what was delivered cannot be continued."""


class StepsError(RuntimeError):
    """The ranks cannot take the same number of steps: no agreement, a rank that failed, or a rank that is missing. Not an ``OSError``: no
    handler of webdataset's may pass it over."""


class NotResumable(RuntimeError):
    """Nobody can tell where this pipeline stands, so it has no exact state: says which part of it that is, and what resumes all the same.
    Not an ``OSError``: no handler of webdataset's may pass it over."""


class TooManySkips(RuntimeError):
    """Handlers passed over more than ``max_skipped`` or ``max_consecutive_skips`` allow. Says how many, the limit, the last three and the
    file that lists all. Not an ``OSError``, and never handed to a handler. ``str()`` is the message alone, as of ``LoaderError``."""

    def __init__(self, text: str = "") -> None:
        super().__init__(text)
        self._text = text

    def __str__(self) -> str:
        return self._text
