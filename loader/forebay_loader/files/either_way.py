"""Through the sidecar, or past it by the store's own file system: which of the two a read takes, and when it comes back."""

from __future__ import annotations

from typing import Callable, TypeVar

from forebay_loader.base.errors import ProxyUnreachable
from forebay_loader.base.notices import notice_once
from forebay_loader.transport.endpoint import find_endpoint, unnamed
from forebay_loader.transport.source_timeout import DEAD

__all__ = ["SidecarHangs", "either", "is_there", "say_past"]

T = TypeVar("T")


class SidecarHangs(ProxyUnreachable):
    """The sidecar is there and does not turn: it may be worth waiting for."""


def is_there() -> bool:
    """Whether a sidecar is named, and was not found dead a moment ago."""
    return find_endpoint() is not None and not DEAD.known()


def say_past() -> None:
    """Say once that nothing is read through a sidecar, and why."""
    _say(unnamed() if find_endpoint() is None else "the sidecar does not answer")


def either(through: Callable[[bool], T], past: Callable[[ProxyUnreachable], T]) -> T:
    """``through`` the sidecar, else ``past`` it; where that fails, and the sidecar only hangs, ``through`` it with all patience.

    Raises what ``past`` raises where the sidecar is gone for good, else ``ProxyUnreachable``.
    """
    try:
        return through(False)
    except ProxyUnreachable as error:
        why = error.with_traceback(None)
    if not isinstance(why, SidecarHangs):
        DEAD.found()
    _say(why)
    try:
        return past(why)
    except Exception as error:  # whatever a store's library raises, or that there is none
        if not isinstance(why, SidecarHangs):
            raise
        other = f"{type(error).__name__}: {error}"
    try:
        return through(True)
    except ProxyUnreachable as error:
        raise ProxyUnreachable(f"{error}; past the sidecar: {other}") from None


def _say(why: object) -> None:
    notice_once("fs-direct", f"fsspec reads past Forebay: {why}")
