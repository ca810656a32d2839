"""The HTTP server that these tests read from leaves nothing behind either."""

from __future__ import annotations

import asyncio
import gc
import socket
import warnings

import pytest
from support.scripted_origin import ScriptedOrigin, abort


@pytest.mark.parametrize("turns", range(5))
def test_a_connection_that_has_just_come_is_closed_with_it(turns: int) -> None:
    """At whatever moment of its being accepted the server ends."""

    async def come_late() -> None:
        with socket.socket() as late:
            async with ScriptedOrigin() as server:
                late.connect((server.host, server.port))
                for _ in range(turns):
                    await asyncio.sleep(0)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(come_late())
        gc.collect()
    assert [str(warning.message) for warning in caught if warning.category is ResourceWarning] == []


async def test_a_connection_that_closed_after_its_last_bytes_may_be_aborted() -> None:
    """asyncio's own transport cannot be, where bytes were left when it was closed."""
    ours, theirs = socket.socketpair()
    reader, other = await asyncio.open_unix_connection(sock=theirs)
    _, writer = await asyncio.open_unix_connection(sock=ours)
    writer.write(bytes(4 << 20))  # more than the sockets hold
    writer.close()
    assert len(await reader.read(-1)) == 4 << 20
    await writer.wait_closed()
    abort(writer)
    abort(other)
