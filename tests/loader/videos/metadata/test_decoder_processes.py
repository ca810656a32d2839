"""A clip that ends its decoder ends no scan: the next one gets a process of its own. With a real decoder: e2e/test_video_index.py."""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from support.clip_infos import steady

from forebay_loader.base.errors import LoaderError
from forebay_loader.videos.clip_info import ClipAddress
from forebay_loader.videos.metadata.decoder_processes import DecoderDeaths, DecoderDied, DecoderProcesses
from forebay_loader.videos.metadata.record import ClipRecord, packed


def serves(asked: Connection) -> None:
    """Ends by the signal, or with the exit code, that a clip is called."""
    faulthandler.disable()
    while question := asked.recv_bytes():
        name = json.loads(question)["name"]
        if name.startswith("signal "):
            os.kill(os.getpid(), int(name[7:]))
        elif name.startswith("exit "):
            os._exit(int(name[5:]))
        answers = {"bad": b"-no picture", "wild": b"+\xff\xff"}
        asked.send_bytes(answers.get(name) or b"+" + packed(ClipRecord(name, 0, "", steady(os.getpid() % 1000 + 2))))


@pytest.fixture
def decoders() -> Iterator[DecoderProcesses]:
    with DecoderProcesses(multiprocessing.get_context("fork"), serves) as found:
        yield found


def clip(name: str) -> ClipAddress:
    return ClipAddress("s3://b/0.tar", "v", name)


def test_one_process_looks_at_many_clips(decoders: DecoderProcesses) -> None:
    """An error in between is told as it was said, and what is no record is an error."""
    first = decoders.look(clip("a"), True)
    for name, why in (("bad", "no picture"), ("wild", "no record of a clip")):
        with pytest.raises(LoaderError, match=why):
            decoders.look(clip(name), True)
    assert decoders.look(clip("b"), False) == first


@pytest.mark.parametrize(
    ("name", "by_clip"),
    [
        *((f"signal {number:d}", number != signal.SIGKILL) for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGKILL)),
        ("exit code 3", False),
    ],
)
def test_one_that_dies_is_told_and_another_goes_on(decoders: DecoderProcesses, name: str, by_clip: bool) -> None:
    """By what; who was killed from outside died by no clip."""
    before = decoders.look(clip("a"), True)
    with pytest.raises(DecoderDied, match=f"^the decoder's process died, {name}$") as error:
        decoders.look(clip(name.replace(" code", "")), True)
    assert error.value.by_clip is by_clip
    assert decoders.look(clip("a"), True) != before


def test_what_was_said_is_kept(tmp_path: Path) -> None:
    """Of that clip, of that length and version; a line that a kill tore off costs itself only."""
    name = "s3://b/0.tar\n\udcff.mp4"
    DecoderDeaths(tmp_path / "t").add(name, 9, "v1", "signal 11")
    with (tmp_path / "t.deaths").open("a") as file:
        file.write('7\n{"name": "b", "clip_b\n')
    deaths = DecoderDeaths(tmp_path / "t")
    deaths.add("c", 1, "", "signal 6")
    for known in (deaths, DecoderDeaths(tmp_path / "t")):
        assert (known.of(name, 9, "v1"), known.of("c", 1, "")) == ("signal 11", "signal 6")
        assert (known.of(name, 8, "v1"), known.of(name, 9, "v2"), known.of("b", 1, "")) == ("", "", "")


def test_nothing_is_created_by_reading(tmp_path: Path) -> None:
    """Most tables have none."""
    assert DecoderDeaths(tmp_path / "t").of("a", 1, "") == ""
    assert list(tmp_path.glob("t*")) == []
