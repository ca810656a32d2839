"""Which boot of the machine this is: what was written under it is still in the page cache, whatever became of the process that wrote it."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path

__all__ = ["boot_id"]

_KERNEL_SAYS = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str:
    """The kernel's word for it; where it does not say, a word nobody else uses: then nothing is trusted unread."""
    with suppress(OSError, ValueError):
        if found := _KERNEL_SAYS.read_text(encoding="ascii").strip():
            return found
    return f"unknown-{secrets.token_hex(8)}"
