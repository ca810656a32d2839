"""The log a starter made for its sidecar: bounded, because nobody rotates it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay_proxy.core.logs import keep_short


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    before = list(logging.getLogger().handlers)
    opened = os.open(tmp_path / "log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    keep_short(opened, most_bytes=1000, kept_bytes=300)
    yield opened
    for handler in set(logging.getLogger().handlers) - set(before):
        logging.getLogger().removeHandler(handler)
    os.close(opened)


def write(descriptor: int, text: str) -> None:
    os.write(descriptor, text.encode() + b"\n")
    logging.getLogger("forebay").warning("a line")


def test_it_is_cut_to_its_last_lines(tmp_path: Path, descriptor: int) -> None:
    """Never far above the bound; what is kept begins with a whole line, and what follows comes after it."""
    for number in range(200):
        write(descriptor, f"line {number:03} " + "x" * 20)
        assert (tmp_path / "log").stat().st_size <= 1000
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[0] == "forebay: the log was cut here"
    assert [int(line.split()[1]) for line in lines[1:]] == list(range(200 - len(lines) + 1, 200))


def test_a_short_one_is_left_alone(tmp_path: Path, descriptor: int) -> None:
    """Every line of it."""
    for number in range(10):
        write(descriptor, str(number))
    assert (tmp_path / "log").read_text() == "".join(f"{number}\n" for number in range(10))


def test_what_is_no_file_is_no_trouble() -> None:
    """A pipe cannot be cut, and nobody is told."""
    reader, writer = os.pipe()
    keep_short(writer, most_bytes=-1)
    try:
        write(writer, "line")
        assert os.read(reader, 100) == b"line\n"
    finally:
        logging.getLogger().handlers.pop()
        os.close(reader)
        os.close(writer)
