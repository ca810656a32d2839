"""The watchdog beside real workers that hang in every way there is: it names them, ends nothing, and says when batches come again."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.fake_proxy import FakeServer, Held
from support.tars import tar_shard

import forebay_loader as fb
from forebay_loader.meter import observer
from forebay_loader.meter.clock.stall_clock import CLOCK
from forebay_loader.meter.report.watchdog import Watchdog

torch_data = pytest.importorskip("torch.utils.data")
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("metered")]

AFTER_S, SILENT_S, UNTIL_S = 0.5, 0.5, 60.0


@pytest.fixture(autouse=True)
def soon_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observer, "STUCK_S", 0.2)  # workers are forked, and have it too


class Numbers(torch_data.Dataset):  # type: ignore[misc, name-defined]
    """The third one hangs."""

    def __init__(self, hang: Callable[[], object]) -> None:
        self.hang = hang

    def __len__(self) -> int:
        return 6

    def __getitem__(self, number: int) -> int:
        if number == 2:
            self.hang()
        return number


class Asking:
    """A trainer in a thread of its own, and a watchdog that is asked until it speaks."""

    def __init__(self, batches: Any) -> None:
        self.batches, self.got, self.watchdog = batches, list[Any](), Watchdog(AFTER_S, SILENT_S)
        self.thread = threading.Thread(target=self._ask, daemon=True)

    def _ask(self) -> None:
        self.got.extend(self.batches)

    def said(self) -> str:
        """The next thing that the watchdog says."""
        until_s = time.monotonic() + UNTIL_S
        while time.monotonic() < until_s:
            fb.stalls()  # as the sidecar is told while the trainer waits: the wait goes on
            said = self.watchdog.look(CLOCK.waiting(), 0)
            if said:
                return said
            time.sleep(0.02)
        return ""

    def said_of(self, word: str) -> str:
        """The first thing that has ``word``: before the observer's next step, or the worker's start, it may say less."""
        while (said := self.said()) and word not in said:
            pass
        return said


@contextmanager
def asking(batches: Any) -> Iterator[Asking]:
    made = Asking(batches)
    made.thread.start()
    yield made
    made.thread.join(UNTIL_S)
    assert not made.thread.is_alive()


def loader(data: Any, **how: Any) -> Any:
    return torch_data.DataLoader(data, **{"batch_size": 1, "num_workers": 1, "prefetch_factor": 1, **how})


def pids(batches: Any) -> list[int]:
    return [worker.pid for worker in batches._workers]


def test_a_worker_that_is_stopped(tmp_path: Path) -> None:
    """By SIGSTOP; it goes on by SIGCONT, and every sample comes."""
    here = tmp_path / "here"
    batches = iter(loader(Numbers(lambda: (here.touch(), time.sleep(0.3)))))
    with asking(batches) as trainer:
        while not here.exists():
            time.sleep(0.01)
        os.kill(pids(batches)[0], signal.SIGSTOP)
        said = trainer.said_of("said nothing")
        assert said.startswith("rank 0: no batch for ")
        assert f"worker 0 (pid {pids(batches)[0]})" in said
        assert f"it is stopped (SIGSTOP); kill -CONT {pids(batches)[0]} lets it go on" in said
        os.kill(pids(batches)[0], signal.SIGCONT)
        assert trainer.said_of("again").startswith("rank 0: batches come again, after ")
    assert [int(batch) for batch in trainer.got] == list(range(6))


def test_a_worker_in_a_call_of_c_that_keeps_the_interpreter() -> None:
    """No thread of that worker runs: the kernel tells what it knows."""
    batches = iter(loader(Numbers(lambda: ctypes.PyDLL(None).usleep(2_500_000))))
    with asking(batches) as trainer:
        said = trainer.said_of("said nothing")
        assert f"worker 0 (pid {pids(batches)[0]})" in said
        assert "it waits in one call that keeps the interpreter for itself" in said
        assert trainer.said_of("again")
    assert len(trainer.got) == 6


def slow_step(seconds: float) -> None:
    time.sleep(seconds)


def test_a_user_function_that_sleeps() -> None:
    """Its stage, since when, and where it stands."""
    batches = iter(loader(Numbers(lambda: slow_step(2.0))))
    with asking(batches) as trainer:
        said = trainer.said_of(" at ")
        assert f"worker 0 (pid {pids(batches)[0]}) is in the user's own stages (map) since " in said
        assert f"; at slow_step ({Path(__file__).name}:" in said
        assert "said nothing" not in said
    assert len(trainer.got) == 6


def test_a_trainer_that_makes_its_batches_itself() -> None:
    """``num_workers=0``: it is this process that sleeps."""
    with asking(iter(loader(Numbers(lambda: slow_step(2.0)), num_workers=0, prefetch_factor=None))) as trainer:
        said = trainer.said_of(" at ")
        assert f"this process (pid {os.getpid()}) is in the user's own stages (map)" in said
        assert "slow_step (" in said
    assert len(trainer.got) == 6


@pytest.mark.webdataset
def test_an_origin_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose shard it is, and how far it has come."""
    with FakeServer().running() as server:
        monkeypatch.setenv("FOREBAY_URL", server.url)
        body = tar_shard(7, samples=4, size=400_000)
        gate = threading.Event()
        server.put("/s3/bucket/7.tar", body)
        server.fault("/s3/bucket/7.tar", Held(900_000, gate))
        data = fb.WebDataset("s3://bucket/7.tar", shardshuffle=False)
        batches = iter(loader(data, batch_size=None))
        with asking(batches) as trainer:
            said = trainer.said_of("shard")
            assert f"worker 0 (pid {pids(batches)[0]}) waits for the " in said
            assert "shard s3://bucket/7.tar at " in said
            gate.set()  # the connection breaks then, and the reader goes on where it was
            assert trainer.said_of("again")
        assert len(trainer.got) == 4
