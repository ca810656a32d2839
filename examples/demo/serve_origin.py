"""The simulated origin as a program of its own, so that its work is not done by the process that is measured."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from demo.origin import Origin

__all__ = ["main"]


async def _run(options: argparse.Namespace, announce: Callable[[str], None], ended: Callable[[], Awaitable[object]]) -> None:
    rate = options.rate_mb * 1e6 if options.rate_mb else None
    origin = Origin(
        options.directory,
        latency_s=options.latency_ms / 1e3,
        rate_bytes_s=rate,
        ranges=not options.no_ranges,
        framing=options.framing,
        port=options.port,
    )
    async with origin:
        announce(json.dumps({"url": origin.base, "pid": os.getpid()}))
        await ended()


async def _until_stdin_closes() -> None:
    """The parent holds our stdin; when it ends, however it ends, so do we: no origin is left behind."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        await reader.read()
    finally:
        transport.close()


def main(arguments: Sequence[str] | None = None) -> None:
    """The command line: serve a directory until interrupted, or with ``--with-parent`` until stdin is closed."""
    parser = argparse.ArgumentParser(prog="python -m demo.serve_origin", description="An origin with latency and a rate per connection.")
    parser.add_argument("directory", type=Path, help="what to serve")
    parser.add_argument("--latency-ms", type=float, default=50.0, help="before each answer (default: %(default)s)")
    parser.add_argument("--rate-mb", type=float, default=20.0, help="MB/s for each body, 0 for no limit (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="default: one the kernel picks")
    parser.add_argument("--no-ranges", action="store_true", help="answer every GET whole")
    parser.add_argument("--framing", choices=("length", "chunked", "close"), default="length", help="how a whole answer ends")
    parser.add_argument("--with-parent", action="store_true", help="end when stdin is closed")
    options = parser.parse_args(arguments)
    ended = _until_stdin_closes if options.with_parent else asyncio.Event().wait
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_run(options, lambda line: print(line, flush=True), ended))


if __name__ == "__main__":
    main()
