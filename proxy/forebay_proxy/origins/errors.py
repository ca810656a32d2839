"""What went wrong on the wire, in our own words: the HTTP client's errors mapped where they enter. No URL is in any text."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp

from forebay_proxy.core.errors import (
    InvalidShard,
    OriginError,
    OriginLied,
    OriginRefused,
    OriginTimeout,
    OriginUnavailable,
    RangeNotSatisfiable,
    ShardChanged,
    ShardError,
    TruncatedShard,
)
from forebay_proxy.core.events import Events
from forebay_proxy.core.facts.origins import OriginFailed
from forebay_proxy.core.facts.requests import ClientRefused
from forebay_proxy.core.shard import Shard
from forebay_proxy.origins.net.guard import Refused
from forebay_proxy.origins.net.proxies import Proxy

__all__ = ["mapped_http_errors", "mapped_proxy_errors", "refused", "refused_by_proxy", "report"]

_NO_SUCH_NAME = frozenset({socket.EAI_NONAME, socket.EAI_NODATA})


class _NoConnection(OriginUnavailable):
    """No connection came about; a class of its own only so that it is counted as such."""


class _Reset(OriginUnavailable):
    """The connection broke while it was used; a class of its own only so that it is counted as such."""


@contextmanager
def mapped_http_errors(shard: str, connect_timeout_s: float, idle_timeout_s: float) -> Iterator[None]:
    """Errors of the HTTP client and the resolver inside become the ``ShardError`` family."""
    try:
        yield
    except aiohttp.ConnectionTimeoutError as error:
        raise _NoConnection(shard, f"no connection to the origin within {connect_timeout_s:g} s") from error
    except aiohttp.ServerTimeoutError as error:
        raise OriginTimeout(shard, f"the origin was silent for {idle_timeout_s:g} s") from error
    except aiohttp.ClientPayloadError as error:
        raise _broken_body(shard, error) from error
    except aiohttp.InvalidURL as error:
        raise InvalidShard(shard, "the HTTP client cannot use this URL") from error
    except aiohttp.ClientResponseError as error:
        # Not the client's message: it holds what could not be read, which may be the shard's own bytes.
        raise OriginLied(shard, f"the origin's answer is not readable HTTP ({type(error).__name__})") from error
    except aiohttp.ClientConnectorCertificateError as error:
        step = "install its CA, or fix the host name"
        raise _NoConnection(shard, "the origin's TLS certificate is not trusted", next_step=step, hopeless=True) from error
    except aiohttp.ClientSSLError as error:
        step = "see whether this port speaks TLS: http and https have ports of their own"
        raise _NoConnection(shard, f"no TLS with the origin ({_words(error)})", next_step=step, hopeless=True) from error
    except aiohttp.ClientConnectorError as error:
        raise _no_connection(shard, error.os_error) from error
    except aiohttp.ClientError as error:
        raise _Reset(shard, f"the origin closed the connection ({_words(error)})") from error
    except OSError as error:
        raise _no_connection(shard, error) from error


@contextmanager
def mapped_proxy_errors(shard: str, proxy: Proxy | None) -> Iterator[None]:
    """What goes wrong between us and the upstream proxy, told apart from what goes wrong at the origin; the rest passes through."""
    try:
        yield
    except aiohttp.ClientHttpProxyError as error:
        assert proxy is not None
        raise refused_by_proxy(shard, proxy, error.status) from error
    except aiohttp.ClientConnectorError as error:
        if proxy is None or (error.host, error.port) != (proxy.place.host, proxy.place.port) or isinstance(error.os_error, Refused):
            raise
        certificate = isinstance(error, aiohttp.ClientConnectorCertificateError)
        what = "its TLS certificate is not trusted" if certificate else _words(error.os_error)
        step = f"check {proxy.variable}, or name this host in NO_PROXY"
        raise _NoConnection(shard, f"no connection to the upstream proxy {proxy.text()}: {what}", next_step=step) from error


def refused_by_proxy(shard: str, proxy: Proxy, status: int) -> ShardError:
    """The proxy itself answered ``status``, in place of the origin."""
    if status in (401, 407):  # tinyproxy says 401 to a wrong password
        step = f"write user:password@ before the host in {proxy.variable}" if not proxy.authorization else f"check them in {proxy.variable}"
        return OriginError(shard, f"the upstream proxy {proxy.text()} wants other credentials ({status})", next_step=step)
    cause = f"the upstream proxy {proxy.text()} opens no way to the origin ({status})"
    if status in (408, 429) or status >= 500:
        return _NoConnection(shard, cause, throttled=status == 429)
    return OriginError(shard, cause, next_step="ask who runs the proxy to allow this host, or name it in NO_PROXY")


@contextmanager
def report(events: Events, shard: Shard) -> Iterator[None]:
    """A ``ShardError`` that leaves is also a fact for the listeners."""
    try:
        yield
    except OriginRefused:
        events.emit(ClientRefused("origin"))
        raise
    except RangeNotSatisfiable:
        raise  # a proper answer: the shard ends before that byte
    except ShardError as error:
        events.emit(OriginFailed(shard.origin, _reason(error), error.cause))
        raise


def refused(shard: str, error: Refused) -> OriginRefused:
    return OriginRefused(shard, error.cause, next_step=error.next_step)


def _reason(error: ShardError) -> str:
    """The word under which a failure is counted."""
    if isinstance(error, OriginUnavailable) and error.throttled:
        return "throttled"
    kinds: tuple[tuple[type[ShardError], str], ...] = (
        (OriginTimeout, "timeout"), (_NoConnection, "connect"), (_Reset, "reset"), (TruncatedShard, "short"), (ShardChanged, "changed"),
        (OriginError, "wrong"),
    )  # fmt: skip
    return next((word for kind, word in kinds if isinstance(error, kind)), "status")


def _broken_body(shard: str, error: aiohttp.ClientPayloadError) -> ShardError:
    if "ConnectionResetError" in str(error):  # the client keeps no other trace of it
        return _Reset(shard, "the origin reset the connection within the body")
    return TruncatedShard(shard, "the origin closed the connection before the end of the body")


def _no_connection(shard: str, error: OSError) -> ShardError:
    if isinstance(error, Refused):
        return refused(shard, error)
    if isinstance(error, socket.gaierror):
        if error.errno in _NO_SUCH_NAME:
            # Waiting out a retry budget would hide a typing mistake; once the host has answered it is the resolver that is in trouble.
            step = "check the host name in the URL"
            return _NoConnection(shard, "the origin's host name does not exist", next_step=step, hopeless=True)
        return _NoConnection(shard, "the origin's host name could not be looked up")
    return _NoConnection(shard, f"no connection to the origin ({_words(error)})")


def _words(error: BaseException) -> str:
    """An errno in words, else the class: texts of libraries may carry URLs."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if isinstance(number, int) and number > 0 else type(error).__name__
