"""Where the sidecar is: looked up at each open, so that a changed variable or a restarted sidecar is followed."""

from __future__ import annotations

import os
import weakref
from dataclasses import dataclass, field
from typing import Callable, Mapping, Optional
from urllib.parse import unquote, urlsplit

from forebay_proxy.wire.protocol.runfile import read_run_file

__all__ = ["INSTANCES", "Endpoint", "Instances", "find_endpoint", "parse_endpoint", "unnamed"]


@dataclass(frozen=True)
class Endpoint:
    """One address of a sidecar: ``host:port``, or a unix socket's path. ``token`` is sent as ``Forebay-Token``."""

    host: str = "127.0.0.1"
    port: int = 0
    socket_path: str = ""
    token: str = field(default="", repr=False)

    @property
    def base(self) -> str:
        """``http://host:port``; what proxy URLs of this sidecar begin with. "" for a socket, which no URL names."""
        return "" if self.socket_path else f"http://{self._host_text}:{self.port}"

    @property
    def _host_text(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host

    def __str__(self) -> str:
        return f"unix:{self.socket_path}" if self.socket_path else self.base


def find_endpoint(environ: Optional[Mapping[str, str]] = None) -> Optional[Endpoint]:
    """``FOREBAY_URL``, else ``FOREBAY_SOCKET``, else the run file; None when nothing names a sidecar."""
    environ = os.environ if environ is None else environ
    token = environ.get("FOREBAY_TOKEN", "")
    named = environ.get("FOREBAY_URL", "")
    if named:
        return parse_endpoint(named, token)
    socket_path = environ.get("FOREBAY_SOCKET", "")
    if socket_path:
        return Endpoint(socket_path=socket_path, token=token)
    described = read_run_file(environ)
    url = described.get("url") if described else None
    return parse_endpoint(url, token) if isinstance(url, str) else None


def unnamed(environ: Optional[Mapping[str, str]] = None) -> str:
    """Why ``find_endpoint`` gave None, and what to do. Without the variable's text, which may hold a token."""
    if (os.environ if environ is None else environ).get("FOREBAY_URL"):
        return "FOREBAY_URL is set, and names no sidecar: it has to be http://host:port or unix:/path"
    return "no sidecar is named by FOREBAY_URL or a run file: start one with `forebay serve` or `with fb.sidecar():`"


def parse_endpoint(url: str, token: str = "") -> Optional[Endpoint]:
    """``http://host:port`` or ``unix:/path`` as an endpoint; None for anything else (then there is no sidecar to ask)."""
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError:
        return None
    if parts.scheme == "unix":
        return Endpoint(socket_path=unquote(parts.path), token=token) if parts.path else None
    if parts.scheme != "http" or not parts.hostname:
        return None
    return Endpoint(parts.hostname, port or 80, token=token)


Heard = Callable[[str], None]


class Instances:
    """Listeners by reader. They are held weakly: a reading that is simply dropped takes its own with it."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._listeners: dict[str, weakref.WeakMethod[Heard]] = {}

    def listen(self, reader: str, heard: Heard) -> None:
        """Call ``heard`` (a method) with the instance that answers ``reader``, at each of its openings."""
        self._listeners[reader] = weakref.WeakMethod(heard, lambda _: self.leave(reader))

    def leave(self, reader: str) -> None:
        self._listeners.pop(reader, None)

    def heard(self, reader: str, instance: str) -> None:
        """``instance`` answered an opening of ``reader``; "" where it did not say."""
        found = self._listeners.get(reader)
        listener: Optional[Heard] = found() if found is not None and instance else None
        if listener is not None:
            listener(instance)


INSTANCES = Instances()
os.register_at_fork(after_in_child=INSTANCES.clear)  # what the parent announced, the parent opens
