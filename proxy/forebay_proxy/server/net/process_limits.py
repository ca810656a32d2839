"""How many files and sockets this process may have open: raised to what the machine allows, and shared out."""

from __future__ import annotations

import resource
from contextlib import suppress

from forebay_proxy.server.net.access import MOST_CONNECTIONS

__all__ = ["client_places", "raise_limit"]

# Far above what a node's sidecar needs; an unlimited one would let a leak run until the kernel is out of memory instead of descriptors.
_ENOUGH = 65_536


def raise_limit() -> int:
    """Raise the soft limit towards the hard one; returns what holds. 1,024, the usual one, is a few hundred readers and their shards."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(_ENOUGH, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a container may forbid it; then fewer clients are taken
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return soft


def client_places() -> int:
    """How many clients may be connected: half of all descriptors at most, because each may need a shard file and an origin connection."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(16, min(MOST_CONNECTIONS, soft // 2))
