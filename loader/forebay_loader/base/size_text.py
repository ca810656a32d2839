"""Bytes as people read them."""

from __future__ import annotations

__all__ = ["size_text"]


def size_text(count: float) -> str:
    """``12.1 GB``: decimal units, one digit behind the point."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
