"""One stage at a time writes to a destination: its lock is an object there, and only the storage's clock judges the lock's age.

A lock holds no more than order: a task's result is the same bytes whoever writes it. So a storage without conditional writes costs a
duplicate task at worst; the next renewal notices the other holder.
"""

from __future__ import annotations

import json
import os
import socket
import uuid
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from forebay_stage.errors import StageBusy

__all__ = ["LOCK", "RENEW_S", "SPEC", "STALE_S", "LockStore", "Noted", "StageLock"]

LOCK = "_stage/lock.json"
SPEC = "_stage/spec.json"  # it says that the destination is a stage's
RENEW_S = 20.0
STALE_S = 120.0  # five renewals may fail
_TRIES = 3  # of two lockers, one loses its first write, and reads the other's lock at its second


@dataclass(frozen=True, slots=True)
class Noted:
    """A small object as it was read: its bytes, a tag of this content, and its age by the storage's clock."""

    data: bytes
    tag: str
    age_s: float


class LockStore(Protocol):
    """What a lock needs of a destination."""

    def get(self, name: str) -> bytes | None: ...

    def noted(self, name: str) -> Noted | None: ...

    def swap(self, name: str, data: bytes, tag: str) -> bool:
        """Write if the object still has this tag; "": if there is none. False: it has another one. A storage may ignore the condition."""

    def delete(self, name: str) -> None: ...

    def clear_torn(self) -> None:
        """Delete what a killed stage left half-written. Only for the holder of the lock."""


class StageLock:
    """``take`` it, ``renew`` it every ``RENEW_S``, ``release`` it. Not thread-safe."""

    def __init__(self, store: LockStore) -> None:
        self._store = store
        self._renewals = 0  # in the lock, so that each renewal has a tag of its own
        self._token = uuid.uuid4().hex
        self._holder = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "pids": _pid_namespace(),
            "since": datetime.now(UTC).isoformat(timespec="seconds"),  # for people; nothing is decided by it
            "token": self._token,
        }

    def take(self) -> None:
        """Raises ``StageBusy`` if a living stage holds it, and ``DestinationFailed``."""
        for _ in range(_TRIES):
            noted = self._store.noted(LOCK)
            if noted is not None and noted.age_s <= STALE_S and not _is_widowed(noted):
                raise _busy(noted)
            if self._written(noted.tag if noted else ""):
                if self._store.get(SPEC) is not None:  # else there may be uploads of others, and this stage will be refused
                    self._store.clear_torn()
                return
        raise StageBusy("other stages take the lock of this destination at the same moment")

    def renew(self) -> None:
        """Raises ``StageBusy`` if the lock is another's now: then end this stage. ``DestinationFailed`` may pass: try again, soon."""
        self._renewals += 1
        noted = self._store.noted(LOCK)  # first, as a storage that ignores the condition would overwrite another's
        if noted is not None and self._is_ours(noted) and self._written(noted.tag):
            return
        noted = self._store.noted(LOCK)
        if noted is not None:
            raise _busy(noted)
        raise StageBusy(f"someone deleted the lock {LOCK} of this stage")

    def release(self) -> None:
        """Delete it, unless it is another's now."""
        noted = self._store.noted(LOCK)
        if noted is not None and self._is_ours(noted):
            self._store.delete(LOCK)

    def _written(self, tag: str) -> bool:
        """Whether the lock is ours after a write. Only reading it tells: an answer may have been lost, a condition ignored."""
        content = json.dumps({**self._holder, "renewals": self._renewals}).encode()
        self._store.swap(LOCK, content, tag)
        noted = self._store.noted(LOCK)
        return noted is not None and noted.data == content

    def _is_ours(self, noted: Noted) -> bool:
        return self._token.encode() in noted.data


def _busy(noted: Noted) -> StageBusy:
    try:
        holder = json.loads(noted.data)
        who = f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
    except (ValueError, KeyError, TypeError):  # written by something else, or empty
        who = "its content does not say which"
    return StageBusy(f"another stage writes to this destination ({who}); it renewed its lock {LOCK} {noted.age_s:.0f} s ago")


def _is_widowed(noted: Noted) -> bool:
    """Whether its holder was a process of this machine that is no more: then nobody has to wait until the lock is old."""
    try:
        holder = json.loads(noted.data)
        here = (holder["host"], holder["pids"]) == (socket.gethostname(), _pid_namespace())
        if here:
            os.kill(int(holder["pid"]), 0)  # /proc may hide another user's process
    except ProcessLookupError:
        return True
    except (ValueError, KeyError, TypeError, OSError, OverflowError):
        pass
    return False


def _pid_namespace() -> str:
    """Another container may have a process of the same number. Tells the machine's starts apart too."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot:
        return f"{boot.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    return uuid.uuid4().hex
