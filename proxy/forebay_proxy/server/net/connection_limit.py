"""How many clients may be connected at once, and which connection leaves when one more comes. Pure: the connections close themselves.

A connection costs a descriptor, and a stuck one also a megabyte of socket buffer, so their number has a bound. Idle connections leave
first: they come back in a tenth of a millisecond, and a client that opens many cannot lock the working ones out. *Strangers* (another local
user, who gets the health paths at most, and a remote client that has not shown its token yet) have a smaller bound of their own, because
any user of the machine could take all the places.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["MOST_CONNECTIONS", "MOST_STRANGERS", "ConnectionLimit", "ConnectionPlace"]

# Eight GPUs with 32 workers of two connections each are 512; four such jobs on one node still fit.
MOST_CONNECTIONS = 2048
# Probes of node agents are a handful. Remote workers are strangers for the one round trip of their first request: a job's worth of them.
MOST_STRANGERS = 256


class ConnectionPlace(Protocol):
    """One connection. ``idle``: no request of it is being answered. ``stranger``: its client has not proved yet that it may talk to the
    sidecar.
    """

    @property
    def idle(self) -> bool: ...

    @property
    def stranger(self) -> bool: ...


class ConnectionLimit:
    """The connections, in the order in which they were last heard. Not thread-safe: the event loop's only."""

    def __init__(self, most: int = MOST_CONNECTIONS, most_strangers: int = MOST_STRANGERS) -> None:
        self._most = most
        self._most_strangers = most_strangers
        self._guests: dict[ConnectionPlace, None] = {}

    def __len__(self) -> int:
        return len(self._guests)

    def __repr__(self) -> str:
        return f"<ConnectionLimit {len(self)} of {self._most}>"

    def enter(self, guest: ConnectionPlace) -> ConnectionPlace | None:
        """Take ``guest`` in; returns the connection that must leave for it: None, the idle one unheard for longest, or ``guest`` itself."""
        self._guests[guest] = None
        if guest.stranger and sum(other.stranger for other in self._guests) > self._most_strangers:
            return self._longest_idle(guest, strangers_only=True)
        return self._longest_idle(guest, strangers_only=False) if len(self._guests) > self._most else None

    def heard(self, guest: ConnectionPlace) -> None:
        """``guest`` asked something."""
        if guest in self._guests:
            del self._guests[guest]
            self._guests[guest] = None

    def leave(self, guest: ConnectionPlace) -> None:
        """It is gone; leaving twice is no error."""
        self._guests.pop(guest, None)

    def _longest_idle(self, newest: ConnectionPlace, *, strangers_only: bool) -> ConnectionPlace:
        others = (guest for guest in self._guests if guest is not newest and guest.idle)
        return next((guest for guest in others if guest.stranger or not strangers_only), newest)
