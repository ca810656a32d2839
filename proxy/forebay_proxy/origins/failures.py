"""What went wrong on the wire, in our own words: the HTTP client's errors mapped where they enter. No URL is in any text."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp

from forebay_proxy.errors import (
    InvalidShard,
    OriginError,
    OriginRefused,
    OriginTimeout,
    OriginUnavailable,
    RangeNotSatisfiable,
    ShardChanged,
    ShardError,
    TruncatedShard,
)
from forebay_proxy.events import ClientRefused, Events, OriginFailed
from forebay_proxy.origins.guard import Refused
from forebay_proxy.shard import Shard

__all__ = ["mapped_http_errors", "refused", "report"]

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
        raise OriginError(shard, f"the origin's answer is not readable HTTP ({type(error).__name__})") from error
    except aiohttp.ClientConnectorCertificateError as error:
        raise OriginError(shard, "the origin's TLS certificate is not trusted", next_step="install its CA, or fix the host name") from error
    except aiohttp.ClientConnectorError as error:
        raise _no_connection(shard, error.os_error) from error
    except aiohttp.ClientError as error:
        raise _Reset(shard, f"the origin closed the connection ({_words(error)})") from error
    except OSError as error:
        raise _no_connection(shard, error) from error


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
        events.emit(OriginFailed(shard.origin, _reason(error)))
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
            # Waiting out the whole retry budget would hide a typing mistake for minutes.
            return OriginError(shard, "the origin's host name does not exist", next_step="check the host name in the URL")
        return _NoConnection(shard, "the origin's host name could not be looked up")
    return _NoConnection(shard, f"no connection to the origin ({_words(error)})")


def _words(error: BaseException) -> str:
    """An errno in words, else the class: texts of libraries may carry URLs."""
    number = getattr(error, "errno", None)
    return os.strerror(number) if isinstance(number, int) and number > 0 else type(error).__name__
