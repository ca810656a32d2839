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
    """Base of the errors of reading, an ``OSError``. ``str()`` is the message alone, also after webdataset has appended to ``args``."""

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
    """The sidecar is gone, or has hung for too long, and there is no other way to these bytes, as for an ``s3://`` URL."""


class ShardReadError(LoaderError):
    """A shard cannot be read: it is refused, absent, or cut short on every way to it. ``status`` is the HTTP status, 0 without one."""

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
    """The shard was replaced while it was read, so the rest does not belong to the samples that were yielded."""


class StepsError(RuntimeError):
    """The ranks cannot take the same number of steps: they do not agree, or one has failed or is missing. It is no ``OSError``, so that no
    handler of webdataset's can skip it.
    """


class NotResumable(RuntimeError):
    """This pipeline has no exact state. The text names the stage that prevents it, and what can be resumed. It is no ``OSError``, so that
    no handler of webdataset's can skip it.
    """


class TooManySkips(RuntimeError):
    """Handlers skipped more than ``max_skipped`` or ``max_consecutive_skips`` allow. The text has the number, the limit, the last three
    skips and the file that lists all. It is no ``OSError`` and no handler gets it. ``str()`` is the message alone.
    """

    def __init__(self, text: str = "") -> None:
        super().__init__(text)
        self._text = text

    def __str__(self) -> str:
        return self._text
