"""What the watchdog says, and when."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from forebay_loader.meter.clock.loader_pass import TrainerWait
from forebay_loader.meter.page import PageView
from forebay_loader.meter.report.watchdog import Watchdog, silent_because
from forebay_proxy.wire.protocol.runfile import process_start_time

S = 10**9
PAGE = PageView(
    function="",
    pid=4711, start_time=99, worker=2, cause="map", since_ns=940 * S, heartbeat_ns=0, begun_ns=0, settled_ns=0,
    bytes=12_300_000, position=4_100_000, skipped=0, waited_ns={}, shard="s3://b/train/00017.tar",
    stack="/home/a b/train.py:7 <module>\n/venv/webdataset/filters.py:31 map\n/home/a b/train.py:33 slow",
)  # fmt: skip


class Trainer:
    """A clock at 1,000 s, and what is said of a wait."""

    def __init__(self, after_s: float = 60.0) -> None:
        self.now_s = 1000.0
        self.watchdog = Watchdog(
            after_s, clock_ns=lambda: int(self.now_s * S), silent=lambda pid, start_time: f"the state of {pid}, {start_time}"
        )
        self.since_ns: int | None = None
        self.page: PageView | None = PAGE

    def asks(self) -> None:
        self.since_ns = int(self.now_s * S)

    def passed(self, seconds: int) -> list[str]:
        """What was said, second by second."""
        found = []
        for _ in range(seconds):
            self.now_s += 1
            page = self.page and replace(self.page, heartbeat_ns=int(self.now_s * S))
            waiting = None if self.since_ns is None else TrainerWait(self.since_ns, 2, 4711, page)
            found.append(self.watchdog.look(waiting, 3))
        return [said for said in found if said]


def test_a_minute_without_a_batch_is_told_in_one_line() -> None:
    """Worker, stage, shard, bytes, since when, and the stack."""
    trainer = Trainer()
    trainer.asks()
    assert trainer.passed(59) == []
    assert trainer.passed(1) == [
        "rank 3: no batch for 60 s: worker 2 (pid 4711) is in the user's own stages (map) since 120 s, "
        "shard s3://b/train/00017.tar at 4.1 MB, 12.3 MB read in all; at slow (train.py:33) < map (filters.py:31) < <module> (train.py:7)"
    ]


def test_it_repeats_seldom_and_says_when_batches_come_again() -> None:
    """After 1, 2, 4, 8, 16 minutes, then every ten; after the end, nothing more."""
    trainer = Trainer()
    trainer.asks()
    said = [line.split(":")[1] for line in trainer.passed(3600)]
    assert said == [f" no batch for {minutes * 60} s" for minutes in (1, 2, 4, 8, 16, 26, 36, 46, 56)]
    trainer.since_ns = None
    assert trainer.passed(600) == ["rank 3: batches come again, after 3601 s"]


def test_a_trainer_that_does_not_ask_waits_for_nothing() -> None:
    """And short waits add up to nothing."""
    trainer = Trainer()
    assert trainer.passed(600) == []
    for _ in range(10):
        trainer.asks()
        assert trainer.passed(59) == []


def test_the_next_wait_is_another_one() -> None:
    """Told after as long as the first."""
    trainer = Trainer()
    trainer.asks()
    trainer.passed(130)
    trainer.asks()
    assert trainer.passed(59) == ["rank 3: batches come again, after 131 s"]
    assert trainer.passed(1)[0].startswith("rank 3: no batch for 60 s")


@pytest.mark.parametrize(
    ("program", "signals", "because"),
    [
        ("import time; time.sleep(60)", [signal.SIGSTOP], "it is stopped (SIGSTOP); kill -CONT {} lets it go on"),
        ("import time; time.sleep(60)", [signal.SIGKILL], "it has ended"),
        ("while True: pass", [], "it computes in one call"),
    ],
)
def test_what_the_kernel_says(program: str, signals: list[signal.Signals], because: str) -> None:
    """Of a real process."""
    made = subprocess.Popen([sys.executable, "-S", "-c", program])
    try:
        begun = process_start_time(made.pid)
        assert begun is not None
        for each in signals:
            os.kill(made.pid, each)
        for _ in range(1000):
            if silent_because(made.pid, begun).startswith(because.format(made.pid)):
                break
            time.sleep(0.01)
        else:
            pytest.fail(silent_because(made.pid, begun))
        assert silent_because(made.pid, begun + 1) == "it has ended"
        assert silent_because(made.pid, None) == ("" if "computes" in because else because.format(made.pid))
    finally:
        os.kill(made.pid, signal.SIGKILL)
        made.wait()
