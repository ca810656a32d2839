"""How large frames are wanted, as an argument says it and in pixels."""

from __future__ import annotations

from typing import Any, Tuple, Union

__all__ = ["Size", "check_size", "sized"]

Size = Union[None, int, Tuple[int, int]]
MOST_SIDE = 1 << 14


def check_size(size: Any) -> Size:
    """``size`` as it is understood: None as it is coded, one number is the shorter side, ``(height, width)`` exactly; all in pixels.

    Raises ``TypeError`` for what is no size, ``ValueError`` for one that is none of 1 to 16384.
    """
    sides = tuple(size) if isinstance(size, (tuple, list)) else () if size is None else (size,)
    if len(sides) > 2 or not all(isinstance(side, int) and not isinstance(side, bool) for side in sides):
        raise TypeError(f"size takes None, the shorter side, or (height, width), in pixels; got {size!r}")
    if not all(0 < side <= MOST_SIDE for side in sides):
        raise ValueError(f"size takes sides of 1 to {MOST_SIDE} pixels; got {size!r}")
    return None if not sides else sides[0] if len(sides) == 1 else (sides[0], sides[1])


def sized(height: int, width: int, size: Size) -> Tuple[int, int]:
    """Height and width in pixels of what is wanted of an upright picture of ``height`` x ``width``."""
    if size is None:
        return height, width
    if isinstance(size, tuple):
        return size
    if height <= width:
        return size, max(1, round(width * size / max(height, 1)))
    return max(1, round(height * size / max(width, 1))), size
