"""Forebay's own access log (``forebay serve --access-log``) as a recording. Pure.

Its lines stand in the order in which answers ended, so they are sorted by their beginnings. An opening is what the sidecar counts as one:
a GET answered with bytes from the shard's first on; a range from further on resumes a stream, or is a part of one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.simulate.recording import NEXT_STEP, Recording, reader_of, shard_of
from forebay_proxy.wire.protocol.plan import ReaderName

__all__ = ["is_served", "served_log"]


@dataclass(frozen=True, slots=True)
class _ServedAnswer:
    """One line that brought bytes; times in seconds since 1970."""

    line: int
    began: float
    ended: float
    told: dict[str, Any]

    @property
    def opens(self) -> bool:
        span = self.told.get("range")
        return span is None or (isinstance(span, list) and span[:1] == [0])

    @property
    def shard(self) -> str:
        """Where a query is kept secret its digest stands for it."""
        query = self.told.get("query")
        return f"{self.told['shard']}?{query}" if isinstance(query, str) else str(self.told["shard"])

    @property
    def length(self) -> int | None:
        length = self.told.get("length")
        if type(length) is int and length >= 0:
            return length
        whole = self.told["status"] == 200 and self.told.get("cut") is None and type(self.told.get("bytes")) is int
        return int(self.told["bytes"]) if whole else None


def is_served(lines: list[tuple[int, str]]) -> bool:
    """Whether these are lines of such a log; the first may be torn."""
    return any(_read(line) is not None for _, line in lines[:2])


def served_log(lines: list[tuple[int, str]]) -> Recording:
    """Raises ``ConfigError``. Lines torn by a kill or a full disk are stepped over, and counted with those that open no shard."""
    recording = Recording("access log")
    read = [(number, _read(line)) for number, line in lines]
    answers = sorted((_answer(number, told) for number, told in read if told and _brought(told)), key=lambda answer: answer.began)
    openings = [answer for answer in answers if answer.opens]
    recording.skipped = len(lines) - len(openings)
    if not openings:
        step = "record a run: forebay serve --access-log FILE"
        raise ConfigError(f"none of its {len(lines)} lines is a GET that was answered with a shard from its start", next_step=step)
    waited = _waited(answers)
    lanes: list[float] = []
    for opening in openings:
        named, epoch = opening.told.get("reader"), opening.told.get("epoch")
        reader = reader_of(opening.line, named) if named is not None else _lane(lanes, opening)
        recording.opened(
            reader, opening.began - openings[0].began, shard_of(opening.line, opening.shard), opening.length,
            epoch=epoch if type(epoch) is int else None, waited_s=waited[opening.line], seconds=opening.ended - opening.began,
        )  # fmt: skip
    return recording


def _read(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and {"time", "shard", "status"} <= value.keys() else None


def _brought(told: dict[str, Any]) -> bool:
    return told.get("method") == "GET" and told["status"] in (200, 206)


def _answer(number: int, told: dict[str, Any]) -> _ServedAnswer:
    try:
        began = datetime.fromisoformat(told["time"]).timestamp()
        told["waited_s"] = max(0.0, float(told["waited_s"]))
        return _ServedAnswer(number, began, began + max(0.0, float(told["seconds"])), told)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ConfigError(f"line {number} is not as forebay serve --access-log writes it", next_step=NEXT_STEP) from None


def _waited(answers: list[_ServedAnswer]) -> dict[int, float]:
    """Seconds, by the line of the opening: in that answer and in those that went on with it."""
    waited: dict[int, float] = {}
    last: dict[tuple[str, str], int] = {}  # (reader, shard) -> the line of its last opening
    for answer in answers:
        key = str(answer.told.get("reader")), answer.shard
        if answer.opens:
            last[key] = answer.line
            waited[answer.line] = 0.0
        if key in last:
            waited[last[key]] += answer.told["waited_s"]
    return waited


def _lane(lanes: list[float], opening: _ServedAnswer) -> ReaderName:
    """A reader for a request that names none. Two at a time are two readers, and one after the other may be one: as few as there can be.

    ``lanes`` holds until when each of them is busy.
    """
    free = next((number for number, until in enumerate(lanes) if until <= opening.began), len(lanes))
    lanes[free : free + 1] = [opening.ended]
    return ReaderName("anonymous", "0", str(free), "0.0")
