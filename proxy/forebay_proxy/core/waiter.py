"""A future that a task may wait for."""

from __future__ import annotations

import asyncio

from forebay_proxy.core.errors import bare

__all__ = ["settle"]


def settle(waiter: asyncio.Future[None], error: BaseException | None) -> None:
    """Let ``waiter`` go on, or raise ``error`` there; one that has gone away is left alone."""
    if waiter.done():
        return
    if error is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(bare(error))  # one each
