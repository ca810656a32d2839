"""What a test puts in the place of something of ours, for as long as its ``MonkeyPatch`` lasts."""

from __future__ import annotations

from typing import Any

import pytest

__all__ = ["disk_does", "swapped"]


def swapped(patch: pytest.MonkeyPatch, owner: object, **instead: Any) -> None:
    """Names of one module, class or object."""
    for name, value in instead.items():
        patch.setattr(owner, name, value)


def disk_does(patch: pytest.MonkeyPatch, **instead: Any) -> None:
    """What the store's blocking leaves do (``file_io``): append, punch, unlink, …"""
    from forebay_proxy.store.files import file_io  # noqa: PLC0415 -- tests of the loader alone lack it

    swapped(patch, file_io, **instead)
