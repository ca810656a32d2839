"""How many descriptors there are, and how many of them clients get."""

from __future__ import annotations

import subprocess
import sys

import pytest

from forebay_proxy.server.net import process_limits
from forebay_proxy.server.net.access import MOST_CONNECTIONS
from forebay_proxy.server.net.process_limits import client_places


def limits_after(soft: int, hard: int) -> tuple[int, int]:
    """(what ``raise_limit`` says, what the kernel says) in a process that begins with these limits."""
    code = (
        f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))\n"
        "from forebay_proxy.server.net.process_limits import raise_limit\n"
        "print(raise_limit(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240, env={"PYTHONPATH": ":".join(sys.path)}
    )
    said, holds = map(int, told.stdout.split())
    return said, holds


@pytest.mark.parametrize(("soft", "hard", "raised"), [(256, 1024, 1024), (1024, 1024, 1024), (512, 4096, 4096)])
def test_the_soft_limit_is_raised_to_the_hard_one(soft: int, hard: int, raised: int) -> None:
    """1,024 would be a few hundred readers and their shards."""
    assert limits_after(soft, hard) == (raised, raised)


@pytest.mark.parametrize(("soft", "places"), [(64, 32), (20, 16), (1024, 512), (65_536, MOST_CONNECTIONS), (-1, MOST_CONNECTIONS)])
def test_clients_get_half_of_them(monkeypatch: pytest.MonkeyPatch, soft: int, places: int) -> None:
    """The rest is for shard files and origins; -1 is no limit."""
    monkeypatch.setattr(process_limits.resource, "getrlimit", lambda _: (soft, soft))
    assert client_places() == places
