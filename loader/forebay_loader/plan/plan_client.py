"""Tell the sidecar what comes next (``/v1/plans``): fire and forget, a few milliseconds, never an error.

The answer to one message is read when the next is sent, usually a shard later, so that a busy sidecar costs a worker nothing. Whatever goes
wrong, the next message replaces the whole plan. Each message says at which of the reader's announcements it begins: one that arrives twice
adds nothing, one behind a lost one is refused, and then the whole plan is sent.

A plan lives in one sidecar's memory. Every answer names the instance it is from (``Forebay-Instance``); when the answer to a reader's shard
names another one than took its plan, the plan is sent again at once (``INSTANCES``).
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
import weakref
from typing import Any, Callable, NamedTuple, Optional, Sequence

from forebay_loader.base.counters import COUNTS
from forebay_loader.stream.shard_request import safe_headers
from forebay_loader.transport.body import Unanswered
from forebay_loader.transport.deferred_connection import DeferredConnection
from forebay_loader.transport.endpoint import INSTANCES, find_endpoint
from forebay_proxy.wire.commands.sources import Source, masked_parts
from forebay_proxy.wire.protocol.plan import Encoded, encode
from forebay_proxy.wire.urls.patterns import InvalidPattern, Pattern, check_parts, index_in, parse_pattern
from forebay_proxy.wire.urls.shard_url import InvalidShardUrl

__all__ = ["Coming", "PlanClient", "Subject", "set_of", "subject_of", "told_epoch"]


CONNECT_S = 0.02  # it is on this machine
SEND_S = 0.02  # the body fits a socket buffer
ANSWER_S = 0.01  # its answer has usually been waiting for a shard's time; together at most 50 ms
PAUSE_S = 5.0  # after a failure: a dead sidecar must not be asked at every shard
REFUSED_PAUSE_S = 60.0  # after a 4xx: the same list will not be taken a moment later
MOST_KEPT = 16  # connections of a process that wait for a plan's next message; a mixture of hundreds of data sets has a plan for each
FORGOTTEN = (404, 409)  # the sidecar does not hold what came before: all of it is sent again


class Subject(NamedTuple):
    """What a plan is about: the set its shards are of, the pattern they are indices into, and the epoch; None where not known."""

    set: Optional[str] = None
    pattern: Optional[Pattern] = None  # of ``set``
    epoch: Optional[int] = None


_NOTHING_KNOWN = Subject()


class Coming(NamedTuple):
    """What a reader has announced and not opened, and how many it had announced before the first of these."""

    at: int
    sources: Sequence[Source]


class _Kept:
    """The clients of this process whose connections are open, the one that sent last at the end."""

    def __init__(self) -> None:
        self._clients: dict[weakref.ref[PlanClient], None] = {}
        self._lock = threading.Lock()

    def hold(self, client: PlanClient) -> None:
        """``client`` has sent; whoever has not for the longest time hangs up where there are too many."""
        with self._lock:
            name = weakref.ref(client)
            self._clients.pop(name, None)
            self._clients[name] = None
            surplus = list(self._clients)[:-MOST_KEPT]
        for name in surplus:
            found = name()
            if found is None or found.let_go():
                with self._lock:
                    self._clients.pop(name, None)


_KEPT = _Kept()


def _renew() -> None:
    global _KEPT  # noqa: PLW0603  # a fork's child has connections of its own
    _KEPT = _Kept()


os.register_at_fork(after_in_child=_renew)


class PlanClient:
    """Sends one reader's plan. Each reading ahead has its own; ``coming`` is asked when the whole plan has to be sent."""

    def __init__(self, reader: str, coming: Callable[[], Coming], subject: Subject = _NOTHING_KNOWN) -> None:
        self._reader = reader
        self._coming = coming
        self._subject = subject
        self._connection = DeferredConnection()
        self._taken = False  # the sidecar holds the plan as we know it
        self._told_whole = False  # what was sent last is a whole plan
        self._numbered = True  # until something is left out, which the sidecar would not count
        self._instance = ""  # which sidecar took it
        self._resent_to = ""
        self._quiet_until_s = float("-inf")
        self._pid = os.getpid()
        self._lock = threading.Lock()  # a shard may be opened by another thread than reads ahead
        INSTANCES.listen(reader, self.heard)

    def announce(self, fresh: Coming) -> None:
        """Append ``fresh``, the last of what is coming; all of it replaces the plan where the sidecar may not have what was before."""
        if self._is_inherited():
            return
        with self._lock:
            self._announce(fresh)

    def heard(self, instance: str) -> None:
        """A shard of this reader came from the sidecar ``instance``: if another one took the plan, or it was refused, send it now."""
        if self._is_inherited() or not self._lock.acquire(blocking=False):
            return  # (if it is just sending: the next shard says it again)
        try:
            if self._connection.awaiting and not self._connection.is_answered():
                return
            self._settle()
            if instance not in (self._instance, self._resent_to):
                self._connection.close()
                self._quiet_until_s, self._taken, self._resent_to = float("-inf"), False, instance
                self._announce(None)
            elif not self._taken and not self._told_whole:  # after a pause the plan had ended: not only the next message brings it back
                self._announce(None)
        finally:
            self._lock.release()

    def withdraw(self) -> None:
        """Take back what is unread, and hang up."""
        if self._is_inherited():
            self._connection.close()
            return
        INSTANCES.leave(self._reader)
        with self._lock:
            if self._may_speak() and (self._taken or self._connection.awaiting):
                self._settle()
                if self._taken:
                    self._send("DELETE", None)
                    self._settle()
            self._connection.close()

    def _announce(self, fresh: Optional[Coming]) -> None:
        if self._may_speak():
            self._settle()
        if not self._may_speak():
            self._taken = False
            return
        if self._taken and fresh is not None:
            self._send("POST", fresh)
        else:
            self._send("PUT", self._coming())

    def _is_inherited(self) -> bool:
        """Whether this is a fork's copy: the plan and the connection are the parent's, and the lock may be held by a thread it had."""
        return self._pid != os.getpid()

    def _may_speak(self) -> bool:
        return time.monotonic() >= self._quiet_until_s

    def _send(self, method: str, coming: Optional[Coming]) -> None:
        listed, headers = announceable(coming.sources if coming else ())
        if coming is not None and not listed:
            return
        content_type, content, query = self._encoded(listed, coming, len(coming.sources)) if coming else Encoded("", b"", "")
        target = f"/v1/plans/{self._reader}" + (f"?{query}" if query else "")
        carried = {**dict(headers), **({"Content-Type": content_type} if content_type else {})}
        try:
            endpoint = find_endpoint()
            if endpoint is None:
                raise Unanswered("no sidecar")
            self._connection.send(endpoint, method, target, content, carried, connect_s=CONNECT_S, send_s=SEND_S)
        except (Unanswered, ValueError):
            self._fail(PAUSE_S)
            return
        self._taken, self._told_whole = True, method == "PUT"
        COUNTS.add("plans_sent")
        _KEPT.hold(self)

    def let_go(self) -> bool:
        """Read the answer that is awaited, which came long ago, and hang up; False while another thread is at it."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._settle()
            self._connection.close()
            return True
        finally:
            self._lock.release()

    def _encoded(self, listed: Sequence[str], coming: Coming, whole: int) -> Encoded:
        subject = self._subject
        self._numbered = self._numbered and len(listed) == whole
        at = coming.at if self._numbered else None
        if subject.pattern is None:
            return encode(listed, epoch=subject.epoch, set=subject.set, at=at)
        indices = [index_in(subject.pattern, url) for url in listed]
        if None in indices:
            return encode(listed, epoch=subject.epoch, set=subject.set, at=at)
        return encode(epoch=subject.epoch, set=subject.set, indices=[index for index in indices if index is not None], at=at)

    def _settle(self) -> None:
        """Read the answer to what was sent last."""
        try:
            answer = self._connection.receive(ANSWER_S)
        except Unanswered:
            self._fail(PAUSE_S)
            return
        if answer is None:
            return
        if not 200 <= answer.status < 300:
            self._fail(0.0 if answer.status in FORGOTTEN else REFUSED_PAUSE_S)
            return
        if self._instance and answer.instance and answer.instance != self._instance and not self._told_whole:
            self._taken = False  # it began in the middle
        self._instance = answer.instance or self._instance

    def _fail(self, pause_s: float) -> None:
        COUNTS.add("plans_failed")
        self._taken = False
        self._quiet_until_s = time.monotonic() + pause_s
        self._connection.close()


def announceable(sources: Sequence[Source]) -> tuple[list[str], list[tuple[str, str]]]:
    """The origin URLs to announce and the headers to send along.

    Headers apply to a host: they travel only when all sources share host and headers; otherwise sources that need some are left out, since
    without them the sidecar would only be refused.
    """
    if not sources:
        return [], []
    first = sources[0]
    shared = all(source.headers == first.headers and source.url.authority == first.url.authority for source in sources)
    if shared:
        return [source.url.text() for source in sources], safe_headers(first)
    return [source.url.text() for source in sources if not source.headers], []


MAX_SET = 1 << 16  # characters; the sidecar takes no more
MAX_EPOCH = 1 << 53


def set_of(urls: Any) -> Optional[str]:
    """The set that the argument ``urls`` of a data set stands for: a pattern's text, or a name for a list; None for anything else."""
    if isinstance(urls, str):
        return urls if len(urls) <= MAX_SET else None
    if isinstance(urls, Sequence) and urls and all(isinstance(url, str) for url in urls):
        digest = hashlib.blake2b("\n".join(urls).encode("utf-8", "surrogateescape"), digest_size=8).hexdigest()
        return f"{len(urls)} shards {digest}"  # the same list is the same set, in every rank and job
    return None


def subject_of(name: Optional[str], epoch: Optional[int]) -> Subject:
    """``name`` as the sidecar knows it: a pattern of origin URLs where it is one, whatever command it was written with."""
    if name is None or not name or not name.isprintable():
        return Subject(None, None, epoch)
    try:
        check_parts(name)
        parts = masked_parts(name)
        urls = [unmask(source.url.text()) for source, unmask in parts or ()]
        pattern = parse_pattern(urls[0]) if len(urls) == 1 and urls[0] else None
    except (InvalidShardUrl, InvalidPattern):
        return Subject(None, None, epoch)  # webdataset will say so
    if not urls:  # a name; or what holds a command of another kind, which may hold a secret
        return Subject(None if "pipe:" in name else name, None, epoch)
    if None in urls:
        return Subject(None, None, epoch)
    return Subject("::".join(url for url in urls if url), pattern if pattern is not None and pattern.count > 1 else None, epoch)


def told_epoch(epoch: Any) -> Optional[int]:
    """The number that ``epoch`` stands for now; None where that is no number."""
    try:
        for name in ("get_value", "value"):
            epoch = getattr(epoch, name, epoch)
        found = epoch() if callable(epoch) else epoch
        return int(found) if found is not None and 0 <= int(found) < MAX_EPOCH else None
    except Exception:  # a user's own object: whatever it does, training goes on
        return None
