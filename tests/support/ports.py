"""Ports of this machine that programs listen on which cannot be told to pick one and say which."""

from __future__ import annotations

import socket
from contextlib import ExitStack

__all__ = ["free_ports", "listens"]


def free_ports(count: int) -> list[int]:
    """That nobody listens on now; they are not reserved."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(probe.getsockname()[1]) for probe in probes]


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
