"""aiohttp's connection, and what its public names do not tell: which requests it has parsed and not answered yet.

The only module that looks at attributes which aiohttp keeps to itself. ``PRIVATE`` names them; a test looks for them in the aiohttp that
is installed, and pyproject.toml bounds its version.
"""

from __future__ import annotations

from aiohttp import web

__all__ = ["PRIVATE", "RequestHandler"]

PRIVATE = {
    "_waiter": "the future it awaits while it has no request; None while it answers one",
    "_messages": "the requests it has parsed and not begun to answer",
}


class RequestHandler(web.RequestHandler):
    """Knows whether it is idle. The event loop's only."""

    __slots__ = ()

    @property
    def idle(self) -> bool:
        """Whether no request is being answered or waits to be."""
        return self._waiter is not None and not self._waiter.done() and not self._messages

    @property
    def unanswered(self) -> int:
        """How many requests have been parsed whose answers are not out."""
        return len(self._messages) + (self._waiter is None)
