"""What the first pass of a worker does not have to pay."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("webdataset")

import webdataset.pipeline

import forebay_loader as fb

pytestmark = pytest.mark.webdataset


class _Asked(type):
    """A class that remembers of which classes it was asked."""

    seen: list[type]

    def __instancecheck__(cls, instance: Any) -> bool:
        cls.seen.append(type(instance))
        return False


def test_our_stages_are_called_without_a_walk_over_torchs_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks whether they are an ``IterableDataset``; of a stage of webdataset's or the user's that is asked as ever."""
    data = fb.WebDataset("http://127.0.0.1:9/a.tar", shardshuffle=False).map(lambda sample: sample["__key__"])
    asked = _Asked("IterableDataset", (), {})
    asked.seen = []
    monkeypatch.setattr(webdataset.pipeline, "IterableDataset", asked)
    data.iterator1()  # puts the stages together, and reads nothing yet
    assert not [kind for kind in asked.seen if kind.__module__.startswith("forebay_loader")]
    assert data.invoke(lambda: 7) == 7
    assert asked.seen


def test_connecting_loads_no_tables_of_international_names() -> None:
    """In a process of its own: here somebody may have loaded them already."""
    code = (
        "import socket, sys\n"
        "from forebay_loader.transport.http import connect\n"
        "from forebay_loader.transport.endpoint import Endpoint\n"
        "with socket.create_server(('127.0.0.1', 0)) as door:\n"
        "    sys.modules.pop('encodings.idna', None)\n"
        "    import encodings; encodings._cache.pop('idna', None)\n"
        "    made = connect(Endpoint(port=door.getsockname()[1]), 60.0)\n"
        "    nodelay = made.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)\n"
        "    made.close()\n"
        "print('encodings.idna' in sys.modules, bool(nodelay))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    assert done.stdout.split() == ["False", "True"]
