"""Where the sidecar passes descriptors: found once, believed until it fails.

``FOREBAY_SOCKET`` and the run file name the HTTP socket, and the door lies beside it; a ``FOREBAY_URL`` alone leads to it by way of
``/v1/status``. Looking costs more than an opening by descriptor, so it is done again only when what was read changes (the variables), or
when the door does not answer. ``FOREBAY_FD=0`` turns it off.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any, Callable, Mapping, Optional

from forebay_loader.base.environ_snapshot import seen
from forebay_loader.transport.body import Unanswered
from forebay_loader.transport.endpoint import Endpoint, find_endpoint
from forebay_loader.transport.http import ask_status
from forebay_loader.transport.hung_sidecar import HUNG, turns
from forebay_proxy.wire.protocol.fd import door_path
from forebay_proxy.wire.protocol.runfile import read_run_file

__all__ = ["DOORS", "Doors"]

_NAMES = (b"FOREBAY_FD", b"FOREBAY_URL", b"FOREBAY_SOCKET", b"XDG_RUNTIME_DIR")
AGAIN_S = 30.0  # between two looks for a door that was not there, or hangs: another namespace stays one
FAILED_S = 1.0  # before the next look for one that broke off: a restarted sidecar is back soon
STATUS_S = 2.0  # for the one question a process asks; HTTP serves meanwhile as well


class Doors:
    """This process's memory of the door. Kept over a fork: children look no more than their parent. ``clock`` counts seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.forget()

    def forget(self) -> None:
        self._lock = threading.Lock()  # a new one: after a fork the old one may be held by a thread that is not here
        self._named: Optional[tuple[Optional[bytes], ...]] = None
        self._path: Optional[str] = None
        self._look_at_s = 0.0

    def path(self) -> Optional[str]:
        """Where the door is, as far as is known; None: over HTTP."""
        named = seen(_NAMES)
        if named == self._named and (self._path is not None or self._clock() < self._look_at_s):
            return self._path
        with self._lock:
            if named != self._named or self._clock() >= self._look_at_s:
                self._path = find_door(os.environ)
                self._named, self._look_at_s = named, self._clock() + AGAIN_S
        return self._path

    def failed(self, path: str, *, timed_out: bool = False) -> None:
        """The door at ``path`` did not do: shards come over HTTP for a while, then it is looked for again."""
        if self._path == path:
            self._path = None
            self._look_at_s = self._clock() + (AGAIN_S if timed_out else FAILED_S)

    def renew_lock(self) -> None:
        self._lock = threading.Lock()


def find_door(environ: Mapping[str, str]) -> Optional[str]:
    """The door's path as the environment, the run file or the sidecar itself says; None where no door exists, or none is wanted."""
    if environ.get("FOREBAY_FD", "") == "0":
        return None
    endpoint = find_endpoint(environ)
    if endpoint is None:
        return None
    path = door_path(endpoint.socket_path) if endpoint.socket_path else _beside_run_file(environ, endpoint) or _told(endpoint)
    return path if path and os.path.exists(path) else None


def _beside_run_file(environ: Mapping[str, str], endpoint: Endpoint) -> Optional[str]:
    """By the run file, if it is about this very sidecar."""
    described = read_run_file(environ) or {}
    named = described.get("socket")
    return door_path(named) if isinstance(named, str) and described.get("url") == endpoint.base else None


def _told(endpoint: Endpoint) -> Optional[str]:
    """By ``/v1/status``."""
    try:
        told: Any = ask_status(endpoint, STATUS_S).get("fd_socket")
    except (Unanswered, ValueError, AttributeError, RecursionError) as error:
        if isinstance(error, Unanswered) and error.silent and not turns(endpoint):
            HUNG.found()  # HTTP need not wait out another silence behind these two
        return None
    return told if isinstance(told, str) and os.path.isabs(told) else None


DOORS = Doors()
os.register_at_fork(after_in_child=DOORS.renew_lock)
