"""What is told of clients: their requests, the readers and plans behind them, the doors they come by. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from forebay_proxy.wire.protocol.meter import MeterBody
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = [
    "Aborted",
    "AccessLogged",
    "ClientRefused",
    "DoorAnswered",
    "LeaseEnded",
    "LoopLagged",
    "MeterTold",
    "NotTar",
    "ReaderWaited",
    "RequestDone",
    "RequestEvent",
    "RequestOutcome",
    "Served",
    "ShardOpened",
]


class RequestOutcome(Enum):
    """How a request was served; the value is the ``result`` label."""

    HIT = "hit"  # every segment was stored when asked for
    COLLAPSED = "collapsed"  # nothing fetched for it alone: it joined fetches others had started
    PARTIAL = "partial"  # some stored, some fetched
    MISS = "miss"  # nothing was here
    BYPASS = "bypass"  # at least one segment could not be stored for lack of room or a failing disk
    RELAYED = "relayed"  # not stored because the reader wants little of the segment


@dataclass(frozen=True, slots=True)
class ReaderWaited:
    """A reader waited for bytes that were not here yet. Hidden by prefetch it is harmless; it is not a stall of the trainer."""

    job: str
    seconds: float
    reader: ReaderName | None = None


@dataclass(frozen=True, slots=True)
class MeterTold:
    """A training process told its stalls. ``grown``: what has come on top of what it told before."""

    reader: ReaderName
    grown: MeterBody


@dataclass(frozen=True, slots=True)
class ShardOpened:
    """A reader with a plan opened a shard. ``how`` that fits: planned, skipped (some were passed over), repeated, unplanned."""

    reader: ReaderName
    how: str


@dataclass(frozen=True, slots=True)
class Served:
    """Of which shard a request was, and for whom. ``range``: the first and the last byte of a 206. ``cut``: see ``Aborted``, or "".

    ``began_at``: when it began, by the sidecar's monotonic clock.
    """

    shard: str  # its name, which may hold a query that nobody should see: not for logs as it is
    reader: ReaderName | None
    epoch: int | None  # as the reader's plan told it
    length: int | None
    range: tuple[int, int] | None
    waited_s: float
    cut: str
    began_at: float


@dataclass(frozen=True, slots=True)
class RequestDone:
    """One client request ended. ``outcome`` is None for anything that is not a shard (status, plans, errors before an opening)."""

    method: str
    code: int
    outcome: RequestOutcome | None
    bytes_sent: int
    first_byte_s: float
    seconds: float
    hit_bytes: int = 0  # of bytes_sent: read from the store
    job: str = ""  # of the reader that asked; "" for an anonymous one
    served: Served | None = None  # None where no shard was named
    error: str = ""  # why not, in words that people and logs may see
    opened_bytes: int = 0  # of a shard that was passed as a file to be read in parts: all of it, and none of bytes_sent
    expected: bool = False  # an answer of 400 or above that is no error: "there is none" to the question whether there is


@dataclass(frozen=True, slots=True)
class LeaseEnded:
    """A descriptor's lease ended. ``done``: the request, as one that was answered with the whole shard; it was counted at once."""

    done: RequestDone


@dataclass(frozen=True, slots=True)
class AccessLogged:
    """Lines of the access log were written, or dropped because its disk took them too slowly or not at all. ``result``: which."""

    result: str
    count: int


@dataclass(frozen=True, slots=True)
class DoorAnswered:
    """The fd door answered one client. ``answer``: passed (a descriptor), or why not: incomplete, encoded, digest, half, disk, …"""

    answer: str


@dataclass(frozen=True, slots=True)
class Aborted:
    """A response was cut after its headers were out. ``reason``: origin_failed, changed, client_gone, shutdown."""

    reason: str
    job: str = ""  # of the reader that was cut off; "" for an anonymous one
    cause: str = ""  # in words that people and logs may see


@dataclass(frozen=True, slots=True)
class NotTar:
    """A reader read a shard whose name says tar, and whose first bytes do not. ``shard`` and ``why`` are words for people and logs."""

    shard: str
    why: str
    job: str = ""  # of the reader; "" for an anonymous one


@dataclass(frozen=True, slots=True)
class ClientRefused:
    """A client without permission was refused, or an origin was. ``reason``: uid, browser, token, origin."""

    reason: str


@dataclass(frozen=True, slots=True)
class LoopLagged:
    """The event loop came back this much later than asked: time during which no reader was served."""

    seconds: float


RequestEvent = (
    Aborted
    | AccessLogged
    | ClientRefused
    | DoorAnswered
    | LeaseEnded
    | LoopLagged
    | MeterTold
    | NotTar
    | ReaderWaited
    | RequestDone
    | ShardOpened
)
