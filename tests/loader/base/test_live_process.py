"""Processes that live, and those that did."""

from __future__ import annotations

import os
import subprocess
import sys

from forebay_loader.base.shared_memory import lives


def test_this_one_lives() -> None:
    assert lives(os.getpid())


def test_one_that_has_ended_does_not() -> None:
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait(60)
    assert not lives(ended.pid)


def test_that_of_another_user_lives() -> None:
    """The first process of the machine is root's; asked as root it may be signalled, and lives all the same."""
    assert lives(1)
