"""Who reads: ``job/rank/worker/opener``, in paths, headers and status pages. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote, unquote

__all__ = ["InvalidReader", "ReaderName"]

_MAX_PART = 128


class InvalidReader(ValueError):
    """The text names no reader; the message says what would be right."""


@dataclass(frozen=True)
class ReaderName:
    """One consumer. ``opener`` is ``pid.n``: train and validation loaders of one process must not overwrite each other.

    Each part is 1 to 128 printable characters without a slash, and not ``.`` or ``..``, which a client would remove from a path.
    Raises ``InvalidReader`` otherwise.
    """

    job: str
    rank: str
    worker: str
    opener: str

    def __post_init__(self) -> None:
        for name in ("job", "rank", "worker", "opener"):
            part = getattr(self, name)
            if not 1 <= len(part) <= _MAX_PART or not part.isprintable() or "/" in part or part in (".", ".."):
                raise InvalidReader(f"the reader's {name} must be 1 to {_MAX_PART} printable characters without '/'")

    @classmethod
    def parse(cls, text: str) -> ReaderName:
        """The reader named by ``job/rank/worker/opener``, each part percent-encoded as ``str()`` writes it."""
        parts = text.split("/")
        if len(parts) != 4:
            raise InvalidReader("a reader is named job/rank/worker/opener, as train-7/0/3/4711.1")
        return cls(*(unquote(part) for part in parts))

    def __str__(self) -> str:
        """ASCII, fit for a header and for a path."""
        return "/".join([quote(part, safe="@:+,=") for part in (self.job, self.rank, self.worker, self.opener)])
