"""The real command with one part rigged to go wrong: ``python rigged.py RIG serve ...``. What goes wrong is named by the functions below.

For what no real part does on demand: a disk that hangs for ever, a loop that stands in a system call, a background task with a fault.
A rig strikes from the moment the file ``$RIG_WHEN`` exists.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from forebay_proxy.app import service, shutdown
from forebay_proxy.background import prefetcher
from forebay_proxy.cli.main import main
from forebay_proxy.store.files import file_io

CLOSE_S = 1.0  # instead of 8: the deadline is waited for


def struck() -> bool:
    return os.path.exists(os.environ["RIG_WHEN"])


def for_ever() -> None:
    threading.Event().wait()


def hung_disk() -> None:
    """Every write hangs, as on a network block device whose other side is gone."""

    def hanging(real: Callable[..., Any]) -> Callable[..., Any]:
        def write(*arguments: Any, **named: Any) -> Any:
            if struck():
                for_ever()
            return real(*arguments, **named)

        return write

    file_io.append = hanging(file_io.append)


def stuck_loop() -> None:
    """The loop stands in a system call: no signal handler of asyncio's ever runs."""

    async def measure_lag(events: Any) -> NoReturn:
        while True:
            if struck():
                time.sleep(1000)
            await asyncio.sleep(0.05)

    service.measure_lag = measure_lag


def faulty_prefetch() -> None:
    """The prefetcher's loop raises whenever it runs."""

    async def run(self: prefetcher.Prefetcher) -> None:
        while not struck():
            await asyncio.sleep(0.05)
        raise ZeroDivisionError("https://user:secret@host/?token=secret")

    prefetcher.Prefetcher.run = run  # type: ignore[method-assign]


RIGS = {rig.__name__: rig for rig in (hung_disk, stuck_loop, faulty_prefetch)}

if __name__ == "__main__":
    shutdown.CLOSE_S = CLOSE_S
    RIGS[sys.argv[1]]()
    del sys.argv[1]
    main()
