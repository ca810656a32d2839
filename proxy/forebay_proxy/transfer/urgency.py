"""How soon something is needed that several may wait for: an opening, a comparison with the origin. Pure."""

from __future__ import annotations

from collections.abc import Hashable

__all__ = ["Urgency"]


class Urgency:
    """How soon the answer of one request is needed; the limiter reads it when a slot frees.

    A request that was begun ahead of need becomes as urgent as the reader that joins it.
    """

    def __init__(self, need: float, need_at: float | None = None, reader: Hashable = None) -> None:
        """``need_at``, ``reader``: of one ahead of need, when by whose plan; then its grant may displace what is needed later still."""
        self.need = need
        self.need_at = need_at
        self.reader = reader
        self.waiting = 0  # how many wait for the answer

    def __repr__(self) -> str:
        return f"<Urgency {self.need:g}, {self.waiting} wait>"

    @property
    def place(self) -> tuple[str, int]:
        """Under what its grant is noted while its segment has no key yet."""
        return f"opening {id(self)}", 0
