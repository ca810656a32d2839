"""Memory that a training process shares with its workers: forked ones inherit it, started ones are handed its descriptor."""

from __future__ import annotations

import os
import sys
import tempfile
from multiprocessing import parent_process

__all__ = ["nameless_file", "training_pid"]


def nameless_file(name: str) -> int:
    """A descriptor of an empty file that no folder lists; ``name`` is for people who look at a process."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:  # not Linux, or a Python built for an old one
        return os.dup(file.fileno())


def training_pid() -> int:
    """The process whose DataLoader this is: the parent of a worker, else this one."""
    data = sys.modules.get("torch.utils.data")
    parent = parent_process()
    in_worker = data is not None and data.get_worker_info() is not None
    return parent.pid if in_worker and parent is not None and parent.pid is not None else os.getpid()
