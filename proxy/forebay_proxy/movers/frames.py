"""What the event loop and a mover say to each other: one message of a SOCK_SEQPACKET pair is one frame. Pure.

docs/movers.md is this module in words. A frame is a byte for its kind, numbers of fixed size (little endian), then texts, each behind its
length in two bytes. Nothing may be left over and nothing may be missing: a message that is not exactly a frame is garbage, and who sent it
is not trusted any further.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass, fields
from enum import IntEnum
from typing import ClassVar, TypeVar

__all__ = [
    "LEAST_BYTES",
    "MOST_MESSAGE_BYTES",
    "BadFrame",
    "Frame",
    "Gone",
    "Hand",
    "HandAgain",
    "Land",
    "Landed",
    "Opened",
    "Outcome",
    "Ping",
    "Pong",
    "Relay",
    "Retire",
    "Unopened",
    "UnopenedFor",
    "decode",
    "encode",
]  # fmt: skip

LEAST_BYTES = 256 * 1024  # of a body: a smaller one is relayed
MOST_MESSAGE_BYTES = 16 * 1024  # two paths and a host name


class BadFrame(ValueError):
    """No frame: garbage, or of another version of this page."""


class Outcome(IntEnum):
    """How a landing ended."""

    WHOLE = 0  # every byte of it is in the file
    STOPPED = 1  # the loop closed the tunnel
    SHORT = 2  # the origin ended its body before that
    BROKEN = 3  # the connection to the origin broke
    DISK = 4  # the file did not take it
    NOT_HELD = 5  # this answer's body is being relayed, or there is none


class UnopenedFor(IntEnum):
    """Why a connection cannot be used."""

    CERTIFICATE = 0
    TLS = 1
    SYSTEM = 2  # an errno
    GONE = 3  # the kept connection is closed


@dataclass(frozen=True, slots=True)
class Hand:
    """To a mover, with two descriptors: a connected TCP socket, and the mover's end of a tunnel. Speak TLS on it where ``tls``."""

    connection: int
    tls: bool
    name: str  # that the certificate must be for
    authorities_file: str  # "": OpenSSL's own
    authorities_directory: str

    NUMBERS: ClassVar = struct.Struct("<QB")
    DESCRIPTORS: ClassVar = 2


@dataclass(frozen=True, slots=True)
class HandAgain:
    """To a mover, with a descriptor: a new tunnel for a connection that it keeps."""

    connection: int

    NUMBERS: ClassVar = struct.Struct("<Q")
    DESCRIPTORS: ClassVar = 1


@dataclass(frozen=True, slots=True)
class Land:
    """To a mover, with the descriptor of a file: the next ``count`` bytes of the connection go there, from ``offset`` on.

    ``slot``: of the watermark. ``keep``: the connection is good for another request afterwards.
    """

    connection: int
    slot: int
    offset: int
    count: int
    keep: bool

    NUMBERS: ClassVar = struct.Struct("<QIQQB")
    DESCRIPTORS: ClassVar = 1


@dataclass(frozen=True, slots=True)
class Relay:
    """To a mover: a body that is held goes through the tunnel."""

    connection: int

    NUMBERS: ClassVar = struct.Struct("<Q")
    DESCRIPTORS: ClassVar = 0


@dataclass(frozen=True, slots=True)
class Retire:
    """To a mover: close the connection, whatever it does; a landing ends as ``STOPPED``."""

    connection: int

    NUMBERS: ClassVar = struct.Struct("<Q")
    DESCRIPTORS: ClassVar = 0


@dataclass(frozen=True, slots=True)
class Ping:
    """To a mover: say that you are there."""

    number: int

    NUMBERS: ClassVar = struct.Struct("<Q")
    DESCRIPTORS: ClassVar = 0


@dataclass(frozen=True, slots=True)
class Opened:
    """From a mover: requests may be written to the tunnel."""

    connection: int

    NUMBERS: ClassVar = struct.Struct("<Q")
    DESCRIPTORS: ClassVar = 0


@dataclass(frozen=True, slots=True)
class Unopened:
    """From a mover: the connection came to nothing. ``number``: an errno, or 0."""

    connection: int
    why: int
    number: int
    words: str

    NUMBERS: ClassVar = struct.Struct("<QBI")
    DESCRIPTORS: ClassVar = 0


@dataclass(frozen=True, slots=True)
class Landed:
    """From a mover: a landing is over, its file closed. ``moved`` bytes of it are in the file; ``checksum``: their xxh3_64.

    ``number``: an errno, or 0. ``kept``: the connection stays for ``HandAgain``.
    """

    connection: int
    outcome: int
    moved: int
    checksum: int
    number: int
    kept: bool

    NUMBERS: ClassVar = struct.Struct("<QBQQIB")
    DESCRIPTORS: ClassVar = 0


@dataclass(frozen=True, slots=True)
class Gone:
    """From a mover: a connection is closed, of which neither ``Unopened`` nor ``Landed`` said so."""

    connection: int

    NUMBERS: ClassVar = struct.Struct("<Q")
    DESCRIPTORS: ClassVar = 0


@dataclass(frozen=True, slots=True)
class Pong:
    """From a mover: the number of the ``Ping``."""

    number: int

    NUMBERS: ClassVar = struct.Struct("<Q")
    DESCRIPTORS: ClassVar = 0


Frame = Hand | HandAgain | Land | Relay | Retire | Ping | Opened | Unopened | Landed | Gone | Pong
F = TypeVar("F", bound=Frame)

_KINDS: dict[int, type[Frame]] = dict(
    enumerate((Hand, HandAgain, Land, Relay, Retire, Ping, Opened, Unopened, Landed, Gone, Pong), start=1)
)
_NUMBER_OF = {kind: number for number, kind in _KINDS.items()}
_LENGTH = struct.Struct("<H")
_BOOLEANS = {kind: [field.type == "bool" for field in fields(kind)] for kind in _NUMBER_OF}


def encode(frame: Frame) -> bytes:
    """The message of ``frame``. Raises ``BadFrame`` for one that does not fit: a number too large, a text too long."""
    values = astuple(frame)
    texts = [value.encode() for value in values if isinstance(value, str)]
    try:
        numbers = frame.NUMBERS.pack(*(value for value in values if not isinstance(value, str)))
        message = b"".join((bytes((_NUMBER_OF[type(frame)],)), numbers, *(_LENGTH.pack(len(text)) + text for text in texts)))
    except struct.error as error:
        raise BadFrame(str(error)) from None
    if len(message) > MOST_MESSAGE_BYTES:
        raise BadFrame(f"{len(message)} bytes are too long for a message")
    return message


def decode(message: bytes, descriptors: int = 0) -> Frame:
    """The frame of a message that came with so many ``descriptors``. Raises ``BadFrame``."""
    kind = _KINDS.get(message[0]) if message else None
    if kind is None:
        raise BadFrame("a message of no known kind")
    if descriptors != kind.DESCRIPTORS:
        raise BadFrame(f"{kind.__name__} came with {descriptors} descriptors")
    position = 1 + kind.NUMBERS.size
    if len(message) < position:
        raise BadFrame(f"{kind.__name__} is cut off")
    values: list[int | bool | str] = list(kind.NUMBERS.unpack_from(message, 1))
    while len(values) < len(_BOOLEANS[kind]):
        text, position = _text(message, position)
        values.append(text)
    if position != len(message):
        raise BadFrame(f"{kind.__name__} is followed by {len(message) - position} bytes")
    for place, is_boolean in enumerate(_BOOLEANS[kind]):
        if is_boolean:
            if values[place] not in (0, 1):
                raise BadFrame(f"{kind.__name__} with a yes or no that is {values[place]}")
            values[place] = bool(values[place])
    return kind(*values)  # type: ignore[arg-type]  # as its Struct and its texts have it


def _text(message: bytes, position: int) -> tuple[str, int]:
    start = position + _LENGTH.size
    if len(message) < start:
        raise BadFrame("a text without its length")
    end = start + _LENGTH.unpack_from(message, position)[0]
    if len(message) < end:
        raise BadFrame("a text is cut off")
    try:
        return message[start:end].decode(), end
    except UnicodeDecodeError:
        raise BadFrame("a text that is no UTF-8") from None
