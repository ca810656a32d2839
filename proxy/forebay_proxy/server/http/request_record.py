"""One request and its answer, as far as they have come: filled in by whoever knows, reported once at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from forebay_proxy.core.events import Aborted, Events, RequestDone, RequestOutcome, Served
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["RequestRecord"]

CLIENT_LEFT = 499  # no status was sent: the client left before there was an answer


@dataclass(slots=True)
class RequestRecord:
    """Times are ``clock()`` seconds. ``code`` is the status sent; ``outcome`` stays None for anything that is not a shard.

    ``looks_only``: a probe, a scrape, a person watching or somebody refused, for whom no idle sidecar stays.
    """

    method: str
    events: Events
    clock: Callable[[], float]
    code: int = CLIENT_LEFT
    outcome: RequestOutcome | None = None
    bytes_sent: int = 0
    hit_bytes: int = 0
    reader: ReaderName | None = None
    shard: str = ""  # its name, once the request is known to be for one
    length: int | None = None
    range: tuple[int, int] | None = None  # of a 206, both inclusive
    epoch: int | None = None  # as the reader's plan told it
    waited_s: float = 0.0
    aborted: str = ""
    error: str = ""  # why not, in words that people and logs may see
    looks_only: bool = True
    _started: float = field(init=False)
    _first_byte: float | None = None

    def __post_init__(self) -> None:
        self._started = self.clock()

    @property
    def job(self) -> str:
        """Of the reader that asks; "" for an anonymous one."""
        return self.reader.job if self.reader else ""

    @property
    def headers_out(self) -> bool:
        """Whether the answer has begun: from then on a failure can only cut it."""
        return self._first_byte is not None

    @property
    def body_begun(self) -> bool:
        """Whether bytes of a shard are on their way: what a drain lets end."""
        return self.headers_out and self.outcome is not None

    def answered(self, code: int) -> None:
        """The header with ``code`` is about to leave; later calls change nothing."""
        if self._first_byte is None:
            self.code = code
            self._first_byte = self.clock()

    def abort(self, reason: str, cause: str = "") -> None:
        """The response was cut, by ``cause`` in words; only the first reason counts."""
        if not self.aborted:
            self.aborted = reason
            self.events.emit(Aborted(reason, self.job, cause))

    def endless(self) -> None:
        """It ends with its connection: that is no abort."""
        self.aborted = "endless"

    def close(self) -> None:
        """Report the request."""
        now = self.clock()
        first = now if self._first_byte is None else self._first_byte
        served = self._served() if self.shard else None
        self.events.emit(
            RequestDone(
                self.method, self.code, self.outcome, self.bytes_sent, first - self._started, now - self._started, self.hit_bytes, self.job,
                served, self.error,
            )
        )  # fmt: skip

    def _served(self) -> Served:
        return Served(self.shard, self.reader, self.epoch, self.length, self.range, self.waited_s, self.aborted, self._started)
