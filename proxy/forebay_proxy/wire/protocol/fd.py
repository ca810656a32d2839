"""What is said at the fd door: one JSON line asks for a complete shard, one answers, with a descriptor beside it or without. Pure.

The door is a unix socket beside the HTTP one (``FOREBAY_SOCKET.fd``). A connection asks as often as it likes, one answer after the other. A
question may number its lease, and a line ends that one; the end of the connection ends all of its leases. The kernel's own lease,
``flock(LOCK_SH)`` on the descriptor that was passed, lasts until the last map of it is gone.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Iterable, NamedTuple, Optional

from forebay_proxy.wire.protocol.plan import InvalidReader, ReaderName

__all__ = [
    "MAX_LINE_BYTES", "FdAnswer", "FdRequest", "InvalidFdAnswer", "InvalidFdRequest", "decode_answer", "decode_end", "decode_request",
    "door_path", "encode_answer", "encode_end", "encode_refusal", "encode_request",
]  # fmt: skip

MAX_LINE_BYTES = 64 * 1024  # a URL has 8 KiB at most, tokens in headers reach 16 kB
# json.dumps and json.loads take three times as long to find out that there is nothing special.
_text = json.JSONEncoder().encode
_value = json.JSONDecoder().raw_decode
_MAX_HEADERS = 100  # as over HTTP
_MOST_LEASE = 10**15
_SUFFIX = ".fd"
_END = re.compile(rb'\s*\{\s*"end"\s*:\s*(\d{1,15})\s*\}\s*', re.ASCII)
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,256}", re.ASCII)
# What a header of HTTP can say, and says the same everywhere: other bytes are read in several ways, and a credential must be one thing.
_VALUE = re.compile(r"(?:[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?)?", re.ASCII)


class InvalidFdRequest(ValueError):
    """The line asks for nothing; the message says what would be right."""


class InvalidFdAnswer(ValueError):
    """The line is no answer of a door that we know."""


@dataclass(frozen=True)
class FdRequest:
    """``shard`` is an origin URL with its options, ``headers`` what proves who asks; both may hold secrets. ``reader`` None: anonymous.

    ``lease``: the client's number for the lease, by which it may end the lease before the connection ends; None: only with the connection.
    ``version``: the ETag of the one that is meant; "": of the one that the shard has now. ``parts``: whether samples of it are read, and
    not all of it.
    """

    shard: str = field(repr=False)
    reader: Optional[ReaderName] = None
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    lease: Optional[int] = None
    version: str = ""
    parts: bool = False


class FdAnswer(NamedTuple):
    """``status`` 200: a descriptor of ``size`` bytes came with it. Any other: none did, HTTP tells or gives more; ``title`` says why."""

    status: int
    size: int = 0
    etag: str = ""
    instance: str = ""
    title: str = ""


def door_path(socket_path: str) -> str:
    """The fd door of the sidecar whose HTTP socket is at ``socket_path``."""
    return socket_path + _SUFFIX


def encode_request(
    shard: str, reader: str, headers: Iterable[tuple[str, str]] = (), lease: Optional[int] = None, version: str = "", *, parts: bool = False
) -> bytes:
    """The line that asks for ``shard``; ``reader`` is ``job/rank/worker/opener`` or "". Raises ``InvalidFdRequest``: HTTP must do."""
    carried = [[name, value] for name, value in headers]
    told: dict[str, Any] = {"shard": shard, "lease": lease, "reader": reader or None, "version": version or None, "parts": parts or None}
    told["headers"] = carried or None
    if not all(_NAME.fullmatch(name) and _VALUE.fullmatch(value) for name, value in carried):
        raise InvalidFdRequest("a header holds what cannot be said in a line of JSON and over HTTP alike")
    line = _text({name: value for name, value in told.items() if value is not None}).encode("ascii") + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise InvalidFdRequest(f"a request of {len(line)} bytes, and {MAX_LINE_BYTES} are taken")
    return line


def decode_request(line: bytes) -> FdRequest:
    """What ``line`` asks for. Unknown members are left alone: a younger client may say more. Raises ``InvalidFdRequest``."""
    told = _object(line, InvalidFdRequest)
    shard, reader, headers = told.get("shard"), told.get("reader", ""), told.get("headers", [])
    if not isinstance(shard, str) or not shard:
        raise InvalidFdRequest('name the shard: {"shard": "s3://bucket/00000.tar"}')
    if not isinstance(headers, list) or len(headers) > _MAX_HEADERS or not all(map(_is_header, headers)):
        raise InvalidFdRequest('headers are a list of [name, value], as [["Authorization", "Bearer …"]]')
    lease = told.get("lease")
    if lease is not None and not (_is_whole(lease) and lease < _MOST_LEASE):
        raise InvalidFdRequest("lease is a whole number of at most 15 digits")
    version = told.get("version", "")
    if not isinstance(version, str):
        raise InvalidFdRequest("version is an ETag, with its quotes")
    return FdRequest(shard, _reader(reader), tuple((name, value) for name, value in headers), lease, version, told.get("parts") is True)


def encode_end(lease: int) -> bytes:
    """The line that ends the lease of this number. It is not answered."""
    return b'{"end": %d}\n' % lease


def decode_end(line: bytes) -> Optional[int]:
    """The lease that ``line`` ends; None where it is something else."""
    found = _END.fullmatch(line)
    return int(found[1]) if found else None


@lru_cache(1024)  # the same shards, epoch after epoch, for each rank
def encode_answer(size: int, etag: str, instance: str) -> bytes:
    """The line that goes with a descriptor."""
    return json.dumps({"size": size, "etag": etag, "instance": instance}).encode("ascii") + b"\n"


def encode_refusal(status: int, title: str, instance: str = "") -> bytes:
    """The line of a door that passes none. ``status`` is HTTP's; 409: not by descriptor, ask over HTTP."""
    return json.dumps({"status": status, "title": title, "instance": instance}).encode("ascii") + b"\n"


def decode_answer(line: bytes) -> FdAnswer:
    """What the door said. Raises ``InvalidFdAnswer``."""
    told = _object(line, InvalidFdAnswer)
    status, size, etag = told.get("status", 200), told.get("size", 0), told.get("etag", "")
    instance, title = told.get("instance", ""), told.get("title", "")
    if not (_is_whole(status) and _is_whole(size) and all(isinstance(text, str) for text in (etag, instance, title))):
        raise InvalidFdAnswer("a member of the answer has another type than it should")
    if status == 200 and not size:
        raise InvalidFdAnswer("a descriptor without a size")
    return FdAnswer(status, size, etag, instance, title)


def _object(line: bytes, error: type[ValueError]) -> dict[str, Any]:
    try:
        text = line.decode("utf-8").strip()
        told, end = _value(text)
    except (ValueError, RecursionError):
        raise error("the line is not JSON") from None
    if end != len(text) or not isinstance(told, dict):
        raise error("the line is not a JSON object")
    return told


def _reader(text: Any) -> Optional[ReaderName]:
    if not isinstance(text, str):
        raise InvalidFdRequest("reader is a text, as train-7/0/3/4711.1")
    try:
        return _parsed_reader(text) if text else None
    except InvalidReader as error:
        raise InvalidFdRequest(f"reader: {error}") from error


_parsed_reader = lru_cache(1024)(ReaderName.parse)  # each asks for thousands of shards


def _is_header(pair: Any) -> bool:
    return (
        isinstance(pair, list)
        and len(pair) == 2
        and all(isinstance(part, str) for part in pair)
        and bool(_NAME.fullmatch(pair[0]) and _VALUE.fullmatch(pair[1]))
    )


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 53
