"""Which clients may use the sidecar, and for what. Pure: ``peers.py`` asks the kernel.

The rules, in the order in which they apply:

1. A client that is neither on loopback nor on the unix socket must send the token.
2. A local client must run as the sidecar's uid or as one given by ``--allow-uid``. ``/healthz`` and ``/readyz`` answer any local uid:
   they say nothing about data, and node agents run as another user. In a user namespace that does not map every user, the kernel
   shows all unmapped users as one uid. That uid is refused, even if it is the sidecar's own.
3. Only the sidecar's own uid, on this machine, may change its rules (``/v1/allow``).
4. A browser may only read the status page, and only if our page made the request: any web page can make a local person's browser send
   requests to the sidecar. Host must be ours (a rebound DNS name is not). A foreign ``Origin`` or ``Sec-Fetch-Site`` is refused.
   So is every path that the status page does not use.
"""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass, field

from forebay_proxy.core.errors import ForebayError
from forebay_proxy.server.net.peers import Peer, Where

__all__ = ["Access", "AccessQuestion", "AccessRefused"]

_OPEN_PATHS = frozenset({"/healthz", "/readyz"})
_OWNERS_PATHS = frozenset({"/v1/allow"})  # the user who may start a sidecar may widen it; --allow-uid and the token only let others read
# The parts of the status page, and what it reads.
_PAGE_PATHS = frozenset({
    "/", "/page/status.js", "/page/drawing.js", "/page/status.css", "/favicon.ico", "/v1/status", "/v1/events", "/v1/history", "/v1/shards",
    "/v1/shards/map", "/v1/plans", "/metrics",
})  # fmt: skip
_COMMANDS = frozenset({"POST", "PUT", "DELETE"})
_OWN_SITES = frozenset({"same-origin", "none"})  # "none": typed into the address bar, or a bookmark


class AccessRefused(ForebayError):
    """This client may not ask this. ``reason`` is the label of the metric: uid, token or browser."""

    status = 403
    title = "Access refused"

    def __init__(self, reason: str, message: str, *, next_step: str) -> None:
        super().__init__(message, next_step=next_step)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class AccessQuestion:
    """The parts of a request that the decision needs. None: the header was not sent."""

    method: str
    path: str
    host: str | None = None
    origin: str | None = None
    fetch_site: str | None = None
    referer: str | None = None
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Access:
    """The rules, with the facts of this sidecar.

    Args:
        own_uid: The sidecar's uid.
        allow_uid: Further uids that may use it.
        hosts: Names of the sidecar besides loopback ones: the addresses it was told to bind.
        token: What remote clients must send; None lets no remote client in.
        anybodys_uid: The uid that the kernel shows for users outside this user namespace.
    """

    own_uid: int
    allow_uid: frozenset[int] = frozenset()
    hosts: frozenset[str] = frozenset()
    token: str | None = field(default=None, repr=False)
    anybodys_uid: int | None = None

    def is_stranger(self, peer: Peer) -> bool:
        """Whether ``peer`` has not proved yet who it is: another user, or a remote client before its first request."""
        return peer.where is Where.REMOTE or not self._is_known(peer.uid)

    def check(self, peer: Peer, asking: AccessQuestion) -> None:
        """Return if ``peer`` may ask this. Raises ``AccessRefused``, which says why, and which flag would allow it."""
        if asking.path in _OWNERS_PATHS:
            self._check_owner(peer)
        if peer.where is Where.REMOTE:
            self._check_token(asking)
            return
        if asking.path not in _OPEN_PATHS:
            self._check_uid(peer)
        if peer.where is Where.LOOPBACK:  # a browser cannot reach the unix socket
            self._check_host(peer, asking)
            _check_browser(asking)

    def _check_token(self, asking: AccessQuestion) -> None:
        if self.token and asking.token and hmac.compare_digest(self.token.encode(), asking.token.encode("utf-8", "surrogateescape")):
            return
        sent = "a wrong one was sent" if asking.token else "none was sent"
        message = f"a client on another address must send the header Forebay-Token, and {sent}"
        step = "send the token that FOREBAY_TOKEN (or `token` in forebay.toml) gave the sidecar, or talk to it over loopback"
        raise AccessRefused("token", message, next_step=step)

    def _check_owner(self, peer: Peer) -> None:
        if peer.where is Where.REMOTE or peer.uid != self.own_uid or not self._is_known(peer.uid):
            message = f"only uid {self.own_uid}, on this machine, may change what this sidecar may do"
            raise AccessRefused("uid", message, next_step="ask who runs it, or start one of your own")

    def _check_uid(self, peer: Peer) -> None:
        if self._is_known(peer.uid):
            return
        if peer.uid is None:
            message = "the kernel does not tell which user is behind this connection"
            step = "use the sidecar's unix socket (FOREBAY_SOCKET), which always carries the user"
        elif peer.uid == self.anybodys_uid:
            message = f"uid {peer.uid} is what the kernel shows of every user whom this user namespace does not map (/proc/self/uid_map)"
            step = (
                f"run the sidecar and its clients as a user the namespace maps, other than {peer.uid} (a container's USER 1000, "
                "or root in a rootless one), or start the sidecar outside of it"
            )
        else:
            message = f"uid {peer.uid} may not use the sidecar of uid {self.own_uid}: cached bytes belong to who fetched them"
            step = f"start a sidecar as uid {peer.uid}, or restart this one with --allow-uid {peer.uid}"
        raise AccessRefused("uid", message, next_step=step)

    def _is_known(self, uid: int | None) -> bool:
        return uid is not None and uid != self.anybodys_uid and (uid == self.own_uid or uid in self.allow_uid)

    def _check_host(self, peer: Peer, asking: AccessQuestion) -> None:
        if asking.host is None:  # HTTP/1.0, so no browser
            return
        name = _host_name(asking.host)
        if name == "localhost" or name in self.hosts or name == peer.local or _is_loopback(name):
            return
        message = f"the Host header names {asking.host[:100]!r}, which is not this sidecar"
        raise AccessRefused("browser", message, next_step="use the address the sidecar printed, as http://127.0.0.1:7070")


def _check_browser(asking: AccessQuestion) -> None:
    # "null" is what a browser sends for a page without an origin (a local file, a sandboxed frame): foreign like any other.
    if asking.origin is not None and asking.origin.lower() != f"http://{asking.host}".lower():
        _refuse_browser(f"a web page of {asking.origin[:100]!r} made a browser send this")
    # Browsers before 2020 send no Origin with a form, but they send a Referer. Other methods may carry any Referer: some origins want it,
    # and --pass-header forwards it.
    if asking.method in _COMMANDS and asking.referer and not asking.referer.lower().startswith(f"http://{asking.host}/".lower()):
        _refuse_browser("a web page made a browser send this command (Referer)")
    if asking.fetch_site is None:
        return
    if asking.fetch_site.lower() not in _OWN_SITES:
        _refuse_browser(f"a web page made a browser send this (Sec-Fetch-Site: {asking.fetch_site[:20]!r})")
    if asking.path not in _PAGE_PATHS | _OPEN_PATHS or asking.method not in ("GET", "HEAD"):
        _refuse_browser("a browser gets the status page only")


def _refuse_browser(message: str) -> None:
    raise AccessRefused(
        "browser", message, next_step="open the status page at / itself; for shards and commands use curl or the forebay command"
    )


def _host_name(host: str) -> str:
    """``[::1]:7070`` -> ``::1``, ``LocalHost:7070`` -> ``localhost``."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
