"""A network of one's own: for the length of a ``with``, this thread and what it starts see loopback and the addresses named, nothing else.

    async def test_metadata_is_never_asked() -> None:
        with lonely_network("169.254.169.254", hosts={"rebind.example": "169.254.169.254"}):
            async with await asyncio.start_server(never, "169.254.169.254", 80): ...

Every test that names an address other than loopback runs inside one, so that a fault in us cannot reach a real machine. Sockets opened
inside stay inside; threads and processes started inside are inside; a *pool* made before is not: make origins, sidecars and servers within.
Skips with its reason where namespaces are not allowed.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address

import pytest

__all__ = ["lonely_network"]

_NEW_NET, _NEW_MOUNTS, _OWN_ROOT = 0x40000000, 0x00020000, 0x00000200
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def lonely_network(*addresses: str, hosts: Mapping[str, str] | None = None) -> Iterator[None]:
    """``addresses`` are put on loopback beside 127.0.0.1 and ::1; ``hosts`` are the only names there are, beside localhost.

    Not to be nested, and for one thread: the thread that entered must leave.
    """
    if shutil.which("ip") is None:
        pytest.skip("needs ip (Debian package iproute2) to put addresses on loopback")
    where = os.getcwd()
    homes = [os.open(f"/proc/thread-self/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ("mnt", "net")]
    try:
        if _libc.unshare(_NEW_NET | _NEW_MOUNTS) != 0:
            pytest.skip(f"a network namespace is not allowed here ({os.strerror(ctypes.get_errno())}): run as root")
        try:
            _furnish(addresses, hosts or {})
            yield
        finally:
            _libc.unshare(_OWN_ROOT)  # threads started inside share our root directory, and then no mount namespace can be entered
            for home in homes:
                if _libc.setns(home, 0) != 0:  # every later test would be cut off
                    pytest.exit(f"cannot leave the network namespace: {os.strerror(ctypes.get_errno())}", returncode=3)
            os.chdir(where)
    finally:
        for home in homes:
            os.close(home)


def _furnish(addresses: tuple[str, ...], hosts: Mapping[str, str]) -> None:
    _run("mount", "--make-rprivate", "/")  # nothing mounted below is seen outside
    with tempfile.NamedTemporaryFile("w", suffix=".hosts") as file:
        file.writelines(f"{address} {name}\n" for name, address in {"localhost": "127.0.0.1", **hosts}.items())
        file.flush()
        _run("mount", "--bind", file.name, "/etc/hosts")  # the mount outlives the name
    _run("ip", "link", "set", "lo", "up")
    for address in addresses:
        # nodad: an IPv6 address is usable at once
        prefix, late = ("128", ["nodad"]) if ip_address(address).version == 6 else ("32", [])
        _run("ip", "address", "add", f"{address}/{prefix}", "dev", "lo", *late)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
