"""Quantities as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.core.quantities import (
    ShareOfDisk,
    TotalBytes,
    format_size,
    parse_duration,
    parse_limit,
    parse_rate,
    parse_share,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("200GB", 200 * 10**9), ("200G", 200 * 10**9), ("200GiB", 200 * 2**30), ("200Gi", 200 * 2**30), ("200 gb", 200 * 10**9),
        ("1.5T", 1_500_000_000_000), (".5k", 500), ("10mb", 10**7), ("0", 0), ("1048576", 1048576), ("7B", 7), (4096, 4096),
        ("9007199254740993PB", 9007199254740993 * 10**15),
    ],
)  # fmt: skip
def test_sizes_people_write(text: str | int, count: int) -> None:
    """Decimal and binary units, with or without B, in any case; plain integers are bytes; whole numbers stay exact."""
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1.5", "200XB", "200i", "2e9", "1_000", "١GB x", "0x10", "True", "nan"])
def test_what_is_no_size_says_what_would_be(text: str) -> None:
    """The message repeats what was written and shows a right one."""
    with pytest.raises(ValueError, match="200GB"):
        parse_size(text)


@given(st.text(max_size=12))
def test_parsers_raise_nothing_but_value_error(text: str) -> None:
    """Whatever is typed, the answer is a quantity or a ValueError."""
    for parse in (parse_size, parse_share, parse_limit, parse_duration):
        try:
            parse(text)
        except ValueError:
            continue


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("75%", ShareOfDisk(0.75)), ("0.75", ShareOfDisk(0.75)), (0.5, ShareOfDisk(0.5)), ("100%", ShareOfDisk(1.0)),
        ("20GiB", TotalBytes(20 * 2**30)),
    ],
)  # fmt: skip
def test_limits(text: str | float, limit: object) -> None:
    """A limit is a share of the disk or a number of bytes."""
    assert parse_limit(text) == limit


@pytest.mark.parametrize("text", ["0%", "101%", "x%", "-5%"])
def test_shares_that_make_no_sense(text: str) -> None:
    """A share lies above 0 and not above 100 %."""
    with pytest.raises(ValueError, match=text):
        parse_limit(text)


def test_a_forgotten_unit_is_noticed() -> None:
    """200 bytes hold no segment; the message asks whether GB was meant."""
    with pytest.raises(ValueError, match="did you mean 200GB"):
        parse_limit("200")


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30), ("30s", 30), ("500ms", 0.5), ("5m", 300), ("5min", 300), ("2h", 7200), ("1d", 86400), (1.5, 1.5)]
)
def test_durations(text: str | float, seconds: float) -> None:
    """A number alone is seconds."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "-1s", "5 weeks", "1e3", "inf"])
def test_what_is_no_duration(text: str) -> None:
    """Neither negative nor endless nor in units nobody named."""
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@given(st.integers(0, 10**17))
def test_a_shown_size_reads_back_to_within_half_a_digit(count: int) -> None:
    """What is shown can be typed, and is at most 5 % away."""
    assert abs(parse_size(format_size(count)) - count) <= 0.05 * count


@pytest.mark.parametrize(
    ("text", "bytes_s"),
    [
        ("10Gbit", 1_250_000_000), ("10Gbit/s", 1_250_000_000), ("10Gbps", 1_250_000_000), ("100 Mbits/s", 12_500_000),
        ("800MB/s", 800_000_000), ("800MB", 800_000_000), ("1.5GiB/s", 3 * 2**29), ("800MBps", 800_000_000), ("64kbit", 8_000), ("7B/s", 7),
    ],
)  # fmt: skip
def test_rates_people_write(text: str, bytes_s: int) -> None:
    """Bits where it says bit or bps, bytes where it says B; all as bytes a second."""
    assert parse_rate(text) == bytes_s


@pytest.mark.parametrize("text", ["", "10", "10G", "10Gb", "10Gb/s", "fast", "-1MB/s", "0MB/s", "1bit", "10Gbit/h", "5iB"])
def test_what_is_no_rate_says_what_would_be(text: str) -> None:
    """A small b alone is both, and so neither."""
    with pytest.raises(ValueError, match="800MB/s for bytes, or 10Gbit for bits"):
        parse_rate(text)
