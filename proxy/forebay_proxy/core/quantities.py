"""Quantities as people write them, parsed once at the edge: sizes, shares of a disk, durations, rates. Pure.

``GB`` and ``G`` are 10**9 bytes, ``GiB`` and ``Gi`` are 2**30, as Kubernetes and disk makers count; a plain integer is bytes. Every parser
raises ``ValueError`` with a message that says what would be right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = [
    "CacheLimit",
    "ShareOfDisk",
    "TotalBytes",
    "format_bits",
    "format_duration",
    "format_rate",
    "format_size",
    "parse_duration",
    "parse_limit",
    "parse_rate",
    "parse_share",
    "parse_size",
]

_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<power>[kmgtp]?)(?P<binary>i?)b?", re.IGNORECASE)
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>ms|s|m|min|h|d|)", re.IGNORECASE)
# A lone small b is refused: networks are sold in bits, disks in bytes, and 10Gb/s has been written for both.
_RATE = re.compile(r"(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<power>[kKmMgGtT]?)(?P<binary>i?)(?P<unit>[Bb]its?|bps|B|Bps)(?:/s)?")
_SECONDS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}

# Less than one segment could never store anything; it is what "--cache-size 200" with a forgotten unit looks like.
_LEAST_LIMIT_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class TotalBytes:
    """The cache may hold this many bytes."""

    count: int

    def __str__(self) -> str:
        return format_size(self.count)


@dataclass(frozen=True, slots=True)
class ShareOfDisk:
    """The cache may hold this share (0 < ratio <= 1) of the free bytes and its own together."""

    ratio: float

    def __str__(self) -> str:
        return f"{self.ratio * 100:g} % of free space"


CacheLimit = TotalBytes | ShareOfDisk


def parse_size(value: str | int) -> int:
    """``"200GB"``, ``"200GiB"``, ``"1.5T"``, ``"1048576"`` or an integer, as bytes."""
    text = str(value).strip()
    match = _SIZE.fullmatch(text)
    if match is None or (match["binary"] and not match["power"]):
        raise ValueError(f"{text!r} is not a size; write 200GB, 200GiB, or a plain integer for bytes")
    if "." in match["number"] and not match["power"]:
        raise ValueError(f"{text!r} is not a whole number of bytes; write 200GB, 200GiB, 75%, or a plain integer for bytes")
    unit = (1024 if match["binary"] else 1000) ** _POWERS[match["power"].lower()]
    # Whole numbers stay whole: a float would lose the last bytes of a petabyte.
    return int(match["number"]) * unit if match["number"].isdigit() else int(float(match["number"]) * unit)


def parse_share(value: str | float) -> float:
    """``"5%"``, ``"0.05"`` or 0.05 as a ratio between 0 and 1."""
    text = str(value).strip()
    try:
        ratio = float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a share; write 5% or 0.05") from None
    if not 0 <= ratio <= 1:
        raise ValueError(f"{text!r} is not between 0% and 100%")
    return ratio


def parse_limit(value: str | int | float | CacheLimit) -> CacheLimit:
    """``"200GB"`` or ``"75%"`` (of free plus already held space; ``"0.75"`` is understood too) as a limit of a cache."""
    if isinstance(value, TotalBytes | ShareOfDisk):
        return value
    text = str(value).strip()
    if text.endswith("%") or re.fullmatch(r"0?\.\d+", text):
        ratio = parse_share(text)
        if ratio == 0:
            raise ValueError(f"{text!r} leaves no room; write 75% or 200GB")
        return ShareOfDisk(ratio)
    count = parse_size(text)
    if count < _LEAST_LIMIT_BYTES:
        # Only a forgotten unit can be guessed; a unit that was written was meant.
        better = f"did you mean {count}GB?" if text.isdigit() and 0 < count < 10_000 else "write 200GB, or 75% of the disk"
        raise ValueError(f"{text!r} is {count} bytes, less than one segment of 8 MiB; {better}")
    return TotalBytes(count)


def parse_duration(value: str | float) -> float:
    """``"30"``, ``"30s"``, ``"500ms"``, ``"5m"``, ``"2h"``, ``"1d"`` or a number, as seconds."""
    text = str(value).strip()
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write 30s, 500ms, 5m, 2h, or a plain number for seconds")
    return float(match["number"]) * _SECONDS[match["unit"].lower()]


def parse_rate(value: str) -> int:
    """``"10Gbit"``, ``"10Gbps"``, ``"800MB/s"`` or ``"1.5GiB/s"`` as bytes a second."""
    text = value.strip()
    match = _RATE.fullmatch(text)
    if match is None or (match["binary"] and not match["power"]):
        raise ValueError(f"{text!r} is not a rate; write 800MB/s for bytes, or 10Gbit for bits, a second")
    unit = (1024 if match["binary"] else 1000) ** _POWERS[match["power"].lower()]
    bytes_s = int(float(match["number"]) * unit / (1 if match["unit"] in ("B", "Bps") else 8))
    if not bytes_s:
        raise ValueError(f"{text!r} is less than a byte a second; write 800MB/s for bytes, or 10Gbit for bits, a second")
    return bytes_s


def format_size(count: int | float) -> str:
    """Bytes for people, three digits, decimal units: ``"12.3 GB"``."""
    number = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(number) < 999.5:
            return f"{number:.0f} {unit}" if unit == "B" or abs(number) >= 99.95 else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} PB"


def format_rate(bytes_s: float) -> str:
    """Bytes a second for people, three digits, so that 10 Gbit is known again: ``"800 MB/s"``, ``"1.25 GB/s"``."""
    number = float(bytes_s)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(number) < 999.5:
            digits = 0 if unit == "B" or number >= 99.95 else 1 if number >= 9.995 else 2
            return f"{number:.{digits}f} {unit}/s"
        number /= 1000
    return f"{number:.2f} TB/s"


def format_bits(bytes_s: float) -> str:
    """The same as networks are sold: ``"10 Gbit/s"``."""
    number = 8 * float(bytes_s)
    for unit in ("bit", "kbit", "Mbit"):
        if number < 999.5:
            return f"{number:.3g} {unit}/s"
        number /= 1000
    return f"{number:.3g} Gbit/s" if number < 999.5 else f"{number:.0f} Gbit/s"


def format_duration(seconds: float) -> str:
    """Seconds for people, at most two units: ``"3 h 12 min"``, ``"4.2 s"``."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours} h {minutes} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours} h"
