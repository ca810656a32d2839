"""What opening a warm shard costs, and what a DataLoader worker holds after each of many epochs; each prints one line of JSON.

    python benchmarks/loader_opening.py open COUNT URL...       seconds of COUNT openings, each up to the first tar header
    python benchmarks/loader_opening.py bare COUNT              seconds of COUNT exchanges of a line for a mapped descriptor, no more
    python benchmarks/loader_opening.py memory EPOCHS URL...    bytes of the worker's own memory after each epoch

With ``pipe:curl`` URLs and without Forebay's environment both are webdataset's own.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import re
import socket
import sys
import time
from pathlib import Path

import webdataset.gopen  # noqa: F401  # the package's attribute of that name is a function, so it is found in sys.modules

import forebay_loader as fb
from forebay_loader.stream.webdataset_openers import open_source, source_of


def openings(count: int, urls: list[str]) -> list[float]:
    gopen = sys.modules["webdataset.gopen"].gopen
    found = []
    for number in range(count):
        url = urls[number % len(urls)]
        source = None if url.startswith("pipe:") else source_of(url)
        begun = time.perf_counter()
        stream = gopen(url, "rb") if source is None else open_source(source)
        view = getattr(stream, "view", None)
        header = stream.read(512) if view is None else bytes(view[:512])
        found.append(time.perf_counter() - begun)
        assert len(header) == 512
        stream.read()  # so that curl ends well, and a connection can be used again
        stream.close()
    return found


def bare(count: int, _: list[str]) -> list[float]:
    """What two processes of Python need for it on this machine, one of them in an event loop: the floor under every opening."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    child = os.fork()
    if not child:
        ours.close()
        asyncio.run(_passing(theirs))
        os._exit(0)
    theirs.close()
    found = []
    with ours:
        for _number in range(count):
            begun = time.perf_counter()
            ours.sendall(b"ask\n")
            _said, (descriptor,), *_rest = socket.recv_fds(ours, 4096, 1)
            with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as held:
                os.close(descriptor)
                header = held[:512]
                found.append(time.perf_counter() - begun)
                assert len(header) == 512
            ours.sendall(b"end\n")
    os.waitpid(child, 0)
    return found


async def _passing(theirs: socket.socket) -> None:
    """Until the other side leaves."""
    theirs.setblocking(False)
    left = asyncio.Event()

    def answer() -> None:
        lines = theirs.recv(4096)
        if not lines:
            asyncio.get_running_loop().remove_reader(theirs)
            left.set()
        if b"ask" in lines:
            descriptor = os.open(__file__, os.O_RDONLY)
            socket.send_fds(theirs, [b"taken\n"], [descriptor])
            os.close(descriptor)

    asyncio.get_running_loop().add_reader(theirs, answer)
    await left.wait()


def memory(epochs: int, urls: list[str]) -> list[int]:
    from torch.utils.data import DataLoader  # noqa: PLC0415  # only here

    data = fb.WebDataset(urls, shardshuffle=True)
    loader = DataLoader(data, batch_size=None, num_workers=1, persistent_workers=True)
    found = []
    for _ in range(epochs):
        iterator = iter(loader)
        for _ in iterator:
            pass
        found.append(anonymous_bytes(iterator._workers[0].pid))  # type: ignore[attr-defined]
    return found


def anonymous_bytes(pid: int) -> int:
    """A process's share of memory that is no file's: maps of shards are the page cache's, and the kernel takes those back."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    anonymous = re.search(r"^Pss_Anon:\s+(\d+) kB", text, re.MULTILINE)
    assert anonymous is not None
    return int(anonymous[1]) * 1024


if __name__ == "__main__":
    WORK = {"open": openings, "bare": bare, "memory": memory}[sys.argv[1]]
    print(json.dumps(WORK(int(sys.argv[2]), sys.argv[3:])))
