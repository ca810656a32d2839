"""Environment variables, looked at so often that looking must cost nothing."""

from __future__ import annotations

import os
from typing import Optional

__all__ = ["seen"]


def seen(names: tuple[bytes, ...]) -> tuple[Optional[bytes], ...]:
    """The raw values of these variables, to compare with those of last time: ``os.environ`` takes 3 us for one that is not there.

    ``os.environ`` keeps variables in the same dictionary in every CPython; other Pythons are asked through ``os.environ`` itself.
    """
    data = getattr(os.environ, "_data", None)
    return tuple(map((data if isinstance(data, dict) else os.environb).get, names))
