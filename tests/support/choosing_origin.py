"""An origin that lets a request's header, or a parameter of its query, choose the bytes; all variants have one length and one date.

It answers itself, or leads on to a resource of each variant.
"""

from __future__ import annotations

import functools
import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qsl, quote, unquote

from support.scripted_answers import Answer, Call, Fault
from support.scripted_origin import ScriptedOrigin, in_a_thread

__all__ = ["DATE", "Choosing", "choosing_origin", "variant"]

_LED = "/variant/"
DATE = "Wed, 21 Oct 2015 07:28:00 GMT"


@functools.lru_cache(maxsize=8)
def variant(value: str, size: int) -> bytes:
    """The bytes that ``value`` chooses; "" for a request without."""
    return random.Random(value).randbytes(size)


@functools.lru_cache(maxsize=8)
def _digest(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


class Choosing(Fault):
    """``by``: the header that chooses, or ``?name``. ``strong``: each variant has an ETag. ``vary``: the lines that are sent.

    ``leads``: by a redirect, which alone has the ``vary``; an ETag is then of date and length, as nginx makes it.
    """

    def __init__(self, by: str, *, strong: bool, vary: tuple[str, ...], size: int) -> None:
        self.base = ""
        self.size = size
        self.leads = False
        self._serial = 0
        self.becomes(by, strong=strong, vary=vary)

    def becomes(self, by: str, *, strong: bool, vary: tuple[str, ...]) -> None:
        """Another shard, chosen otherwise."""
        self.by, self.strong, self.vary = by, strong, vary
        self.bodies: list[str] = []  # what chose each body of more than one byte
        self._serial += 1

    @property
    def shard(self) -> str:
        return f"{self.base}/set/{self._serial}.tar"

    def answer(self, call: Call) -> Answer:
        seen, by = call.seen, self.by
        value = dict(parse_qsl(seen.query)).get(by[1:], "") if by.startswith("?") else seen.headers.get(by.lower(), "")
        vary = tuple(("Vary", line) for line in self.vary)
        if seen.path.startswith(_LED):
            value, vary = unquote(seen.path[len(_LED) :]), ()
        elif self.leads:
            return call.honest(status=302, etag=None, headers=(("Location", _LED + quote(value, safe="")), *vary))
        data = variant(value, self.size)
        etag = f'"5627-{len(data):x}"' if self.leads else f'"{_digest(data)}"'
        named = {"etag": etag if self.strong else None, "last_modified": DATE, "conditions": self.strong}
        answer = call.honest(status=None, body=data, headers=vary, **named)
        if seen.method == "GET" and answer.end - answer.first > 1:
            self.bodies.append(value)
        return answer


@contextmanager
def choosing_origin(by: str, *, strong: bool, vary: tuple[str, ...], size: int = 5000) -> Iterator[Choosing]:
    """One that listens, for the length of a ``with``."""
    script = Choosing(by, strong=strong, vary=vary, size=size)
    with in_a_thread(ScriptedOrigin(anything=script)) as origin:
        script.base = origin.base
        yield script
