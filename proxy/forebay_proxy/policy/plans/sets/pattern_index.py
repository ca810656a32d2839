"""Where a text stands among those of a brace pattern, when many are asked for: the part before the number is looked up once. Pure."""

from __future__ import annotations

from forebay_proxy.wire.urls.patterns import Pattern, index_in, split_last

__all__ = ["PatternIndex"]

_MOST_FOLDERS = 4096  # remembered; a set has a handful


class PatternIndex:
    """The inverse of a pattern: 1 us instead of 20 where its last numbers all have the same width (``{00000..41454}.tar``)."""

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        self._folders: dict[str, int | None] = {}  # text before the numbers -> how many texts come before those that begin so
        split = split_last(pattern)
        self._count, self._behind, self._width = 0, "", 0
        if split is not None:
            _, numbers, self._behind = split
            self._count = numbers.count
            first, last = numbers.at(0), numbers.at(self._count - 1)
            # From zero in steps of one, and none wider than another: the number is the place, and it cannot be read in two ways.
            if first == "0" * len(last) and last == f"{self._count - 1:0{len(first)}d}":
                self._width = len(first)

    def find(self, text: str) -> int | None:
        """The index of ``text``; None where the pattern has no such text."""
        cut = len(text) - len(self._behind)
        digits = text[cut - self._width : cut] if self._width and text.endswith(self._behind) else ""
        if len(digits) != self._width or not (digits.isascii() and digits.isdigit()):
            return index_in(self._pattern, text)
        head = text[: cut - self._width]
        own = int(digits)
        if own >= self._count:
            return None
        before = self._folders.get(head, -1)
        if before is None or before >= 0:
            return None if before is None else before + own
        return self._find_folder(head, text, own)

    def _find_folder(self, head: str, text: str, own: int) -> int | None:
        """That nothing begins so is remembered too: every shard of another set asks."""
        found = index_in(self._pattern, text)
        if found is None or found % self._count == own:
            if len(self._folders) >= _MOST_FOLDERS:
                self._folders.clear()
            self._folders[head] = None if found is None else found - own
        return found
