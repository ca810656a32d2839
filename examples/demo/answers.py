"""What an origin answers to a request: parsing and deciding, no socket. Pure but for the ``stat`` result it is given."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qs, unquote

__all__ = ["Answer", "Ask", "Framing", "answer_to", "parse", "plain"]

Framing = Literal["length", "chunked", "close"]

_RANGE = re.compile(r"bytes\s*=\s*(?P<first>\d*)-(?P<last>\d*)\s*")
_END_OF_WHOLE = {"chunked": {"Transfer-Encoding": "chunked"}, "close": {"Connection": "close"}}


@dataclass(frozen=True)
class Ask:
    """One parsed request head. Header names are in lower case."""

    method: str
    path: str  # decoded, starts with "/"
    query: dict[str, str]
    headers: dict[str, str]


@dataclass(frozen=True)
class Answer:
    """Status and headers, and which bytes of the file follow: ``[first, stop)``."""

    status: str
    headers: dict[str, str]
    first: int = 0
    stop: int = 0
    text: bytes = b""


def answer_to(ask: Ask, about: os.stat_result, *, ranges: bool, framing: Framing) -> Answer:
    """The answer to a GET or HEAD of a file: 200, 206, 304, 412 or 416 by RFC 9110, sections 13 and 14."""
    etag = f'"{about.st_size:x}-{about.st_mtime_ns:x}"'
    if ask.headers.get("if-match", etag) not in (etag, "*"):
        return Answer("412 Precondition Failed", {"Content-Length": "0", "ETag": etag})
    if ask.headers.get("if-none-match") == etag:
        return Answer("304 Not Modified", {"ETag": etag})
    headers = {"ETag": etag, "Content-Type": "application/x-tar"} | ({"Accept-Ranges": "bytes"} if ranges else {})
    asked = ask.headers.get("range") if ranges and ask.headers.get("if-range", etag) == etag else None
    if asked is None:
        how = _END_OF_WHOLE.get(framing, {"Content-Length": str(about.st_size)})
        return Answer("200 OK", headers | how, 0, about.st_size)
    return _part(headers, asked, about.st_size)


def _part(headers: dict[str, str], asked: str, size: int) -> Answer:
    span = _span(asked, size)
    if span is None:
        return Answer("416 Range Not Satisfiable", {"Content-Range": f"bytes */{size}", "Content-Length": "0"})
    first, stop = span
    headers = headers | {"Content-Range": f"bytes {first}-{stop - 1}/{size}", "Content-Length": str(stop - first)}
    return Answer("206 Partial Content", headers, first, stop)


def plain(status: str, text: bytes) -> Answer:
    return Answer(status, {"Content-Type": "text/plain", "Content-Length": str(len(text))}, text=text)


def parse(head: bytes) -> Ask | None:
    """A request head, or None when it is none."""
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or not parts[1].startswith("/"):
        return None
    path, _, query = parts[1].partition("?")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Ask(parts[0], unquote(path), {name: values[0] for name, values in parse_qs(query).items()}, headers)


def _span(header: str, size: int) -> tuple[int, int] | None:
    """``bytes=a-b``, ``bytes=a-`` or ``bytes=-n`` as ``[first, stop)``; the whole file for any other Range; None outside the file."""
    match = _RANGE.fullmatch(header)
    if match is None or match["first"] == match["last"] == "":
        return 0, size
    if match["first"]:
        first, stop = int(match["first"]), min(size, int(match["last"] or size) + 1)
    else:
        first, stop = max(0, size - int(match["last"])), size
    return (first, stop) if first < stop else None
