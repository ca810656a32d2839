"""Whether a loop over a loader was left in the middle, where the loader keeps its iterator for the next one.

Other iterators go with the loop that held them. This one stays, with its workers (``persistent_workers=True``, torchdata's stateful
loader), and nobody says that no batch will be asked of it for an hour. But then nobody else holds it.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["kept_alone"]


def kept_alone(loader: Any) -> bool:
    """Whether ``loader`` keeps an iterator that nobody else holds; a reference that a caller has is somebody's."""
    return getattr(loader, "_iterator", None) is not None and sys.getrefcount(loader._iterator) <= _ALONE


class _Keeper:
    """Keeps an object as torch's loaders do, in an attribute."""

    def __init__(self) -> None:
        self._iterator = object()


_KEEPER = _Keeper()
_ALONE = sys.getrefcount(_KEEPER._iterator)  # what this Python counts for the attribute and the question itself
