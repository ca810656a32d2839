"""What a test puts in the place of something of ours, for as long as its ``MonkeyPatch`` lasts."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import Any

import pytest

__all__ = ["Gate", "ThreadGate", "disk_does", "held_in_thread", "held_up", "refuses", "swapped"]


def swapped(patch: pytest.MonkeyPatch, owner: object, **instead: Any) -> None:
    """Names of one module, class or object."""
    for name, value in instead.items():
        patch.setattr(owner, name, value)


def disk_does(patch: pytest.MonkeyPatch, **instead: Any) -> None:
    """What the store's blocking leaves do (``file_io``): append, punch, unlink, …"""
    from forebay_proxy.store.files import file_io  # noqa: PLC0415 -- tests of the loader alone lack it

    swapped(patch, file_io, **instead)


def refuses(patch: pytest.MonkeyPatch, owner: object, error: BaseException, *names: str) -> None:
    """Calls of these names raise ``error``; those of coroutine functions once they are awaited."""

    def now(*_: object, **__: object) -> None:
        raise error

    async def awaited(*_: object, **__: object) -> None:
        raise error

    swapped(patch, owner, **{name: awaited if inspect.iscoroutinefunction(getattr(owner, name)) else now for name in names})


class Gate:
    """Closed until ``open``; ``reached`` is set once somebody stands before it."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.calls = 0
        self._open = asyncio.Event()

    def open(self) -> None:
        self._open.set()

    async def passed(self) -> None:
        self.calls += 1
        self.reached.set()
        await self._open.wait()


class ThreadGate:
    """The same for blocking calls."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.calls = 0
        self._open = threading.Event()

    def open(self) -> None:
        self._open.set()

    def passed(self) -> None:
        self.calls += 1
        self.reached.set()
        assert self._open.wait(60)


def held_up(patch: pytest.MonkeyPatch, owner: object, name: str, *, after: bool = False) -> Gate:
    """Coroutines of this name wait at the gate that comes back: before they do anything, or ``after`` they did it."""
    gate, real = Gate(), getattr(owner, name)

    async def held(*args: Any, **how: Any) -> Any:
        if not after:
            await gate.passed()
        result = await real(*args, **how)
        if after:
            await gate.passed()
        return result

    patch.setattr(owner, name, held)
    return gate


def held_in_thread(patch: pytest.MonkeyPatch, owner: object, name: str) -> ThreadGate:
    """Blocking calls of this name wait at the gate that comes back before they do anything."""
    gate, real = ThreadGate(), getattr(owner, name)

    def held(*args: Any, **how: Any) -> Any:
        gate.passed()
        return real(*args, **how)

    patch.setattr(owner, name, held)
    return gate
