"""Identifies the client of a connection, as the kernel knows it.

A unix socket carries the client's credentials (SO_PEERCRED). For loopback TCP the sidecar asks the kernel over netlink, once per
connection, which uid owns the client's end (inet_diag, 8-20 us). Some sandboxes have no such netlink family; there ``/proc/net/tcp``
gives the same, slower. The uid is None if it cannot be learnt, and None matches no user.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import struct
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

__all__ = ["Peer", "Where", "loopback_uid", "peer_of", "unix_peer"]

_NETLINK_SOCK_DIAG = 4
_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST = 1
_ALL_STATES = 0xFFF  # a client that has shut down its sending side still counts
_NO_COOKIE = b"\xff" * 8
_NLMSG_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port id
_UID_OFFSET = _NLMSG_HEADER.size + 4 + 48 + 12  # inet_diag_msg: 4 bytes of state, sockid (48), expires, rqueue, wqueue, then uid, inode
_UCRED = struct.Struct("=iII")  # pid, uid, gid

Address = tuple[str, int]


class Where(Enum):
    """How a client reached us."""

    LOOPBACK = "loopback"
    UNIX = "unix"
    REMOTE = "remote"


@dataclass(frozen=True, slots=True)
class Peer:
    """A client. ``uid`` is None for a remote one or if the kernel does not tell. ``local`` is our address, "" for a unix socket."""

    where: Where
    uid: int | None
    local: str = ""


def peer_of(transport: asyncio.BaseTransport) -> Peer:
    """Identify the client of ``transport``. Call it once per connection, at once: the kernel forgets a client that has gone."""
    sock = transport.get_extra_info("socket")
    if sock.family == socket.AF_UNIX:
        return unix_peer(sock)
    theirs, ours = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    if not theirs or not ours:
        return Peer(Where.REMOTE, None)  # gone before it was accepted
    theirs, ours = theirs[:2], ours[:2]
    if not ipaddress.ip_address(theirs[0].partition("%")[0]).is_loopback:
        return Peer(Where.REMOTE, None, ours[0])
    return Peer(Where.LOOPBACK, loopback_uid(theirs, ours), ours[0])


def unix_peer(sock: socket.socket) -> Peer:
    """Who is at the other end of a unix socket's connection."""
    return Peer(Where.UNIX, int(_UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))[1]))


def loopback_uid(theirs: Address, ours: Address) -> int | None:
    """The uid that owns the client's end ``theirs`` of a loopback TCP connection to ``ours``; None if the kernel knows no such end."""
    try:
        return _uid_by_netlink(theirs, ours)
    except OSError:
        return _uid_by_proc(theirs, ours)


def _uid_by_netlink(theirs: Address, ours: Address) -> int | None:
    family = socket.AF_INET6 if ":" in theirs[0] else socket.AF_INET
    # Seen from the client's end, the source is our peer.
    ends = struct.pack(">HH", theirs[1], ours[1]) + _packed(family, theirs[0]) + _packed(family, ours[0])
    sockid = ends + struct.pack("=I", 0) + _NO_COOKIE
    query = struct.pack("=BBBBI", family, socket.IPPROTO_TCP, 0, 0, _ALL_STATES) + sockid
    header = _NLMSG_HEADER.pack(_NLMSG_HEADER.size + len(query), _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_SOCK_DIAG) as netlink:
        netlink.send(header + query)
        # The kernel answers within send(), so this does not wait.
        answer = netlink.recv(8192, socket.MSG_DONTWAIT)
    return _uid_in(answer)


def _uid_in(answer: bytes) -> int | None:
    kind = _NLMSG_HEADER.unpack_from(answer)[1]
    if kind == _SOCK_DIAG_BY_FAMILY:
        uid, inode = struct.unpack_from("=II", answer, _UID_OFFSET)
        # A client that has closed its end owns no inode, and the kernel says uid 0: without this check, anybody could pass for root.
        return int(uid) if inode else None
    code = -struct.unpack_from("=i", answer, _NLMSG_HEADER.size)[0]
    if code == 2:  # ENOENT: the client is already gone
        return None
    raise OSError(code, os.strerror(code))


def _packed(family: int, address: str) -> bytes:
    """16 bytes in network order, which inet_diag wants for both families."""
    return socket.inet_pton(family, address.partition("%")[0]).ljust(16, b"\0")


def _uid_by_proc(theirs: Address, ours: Address) -> int | None:
    table = Path("/proc/net/tcp6" if ":" in theirs[0] else "/proc/net/tcp")
    wanted = [_proc_form(theirs), _proc_form(ours)]
    try:
        with table.open(encoding="ascii") as lines:
            next(lines, None)
            return next((int(cells[7]) for cells in map(str.split, lines) if cells[1:3] == wanted and cells[9] != "0"), None)
    except OSError:
        return None


def _proc_form(address: Address) -> str:
    """``0100007F:1B9E``: the address in 32-bit words of host order."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    packed = socket.inet_pton(family, address[0].partition("%")[0])
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return "".join(f"{word:08X}" for word in words) + f":{address[1]:04X}"
