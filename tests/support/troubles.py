"""What training may wait for, made in turn: a real sidecar, a training with two workers, an origin in this process that behaves as told.

    with troubled(TROUBLES["decode"], place) as scene:
        scene.sidecar_says()  …  scene.trainer_says()  …  scene.lines()

The tests of the verdict use it, and benchmarks/scenes.py, which makes pictures of it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from support.disks import bad_disk, delay
from support.scripted_answers import Answer, Call, Fault
from support.scripted_origin import ScriptedOrigin, in_a_thread
from support.sidecar import Sidecar, environment, running, small_segments
from support.tars import tar_shard
from support.warm_python import python_program

__all__ = ["SEGMENT_BYTES", "TROUBLES", "Scene", "Trouble", "troubled"]

TRAINER = Path(__file__).with_name("troubled_trainer.py")
MANY, SAMPLES, SAMPLE_BYTES = 4000, 8, 16_000  # all shards are the same bytes: a batch each
SEGMENT_BYTES = 64 * 1024
STEP_S = 0.005
SLOW_READ_S = 0.04
HELD_S, FREE_S = 0.4, 0.1  # a sidecar that gets a fifth of a processor


class Busy(Fault):
    """An origin that answers so many requests at a time, and refuses the others."""

    def __init__(self, most: int, status: int) -> None:
        self.most, self.status = most, status

    def answer(self, call: Call) -> Answer:
        return call.honest() if call.in_flight <= self.most else call.honest(status=self.status, body=b"slow down", latency_s=0.0)


class Refusing(Fault):
    """Every request is refused."""

    def answer(self, call: Call) -> Answer:
        return call.honest(status=503, body=b"service unavailable", latency_s=0.0)


@dataclass(frozen=True)
class Trouble:
    """``cause``: what the sidecar has to say; ``own``: what the training process can know of it. ``case``: its slow stage."""

    name: str
    cause: str
    own: str
    case: str = "none"
    step_s: float = STEP_S
    shards: int = MANY
    cache: str = "300MB"
    warm: int = 0  # shards that are in the cache before
    reply: Mapping[str, Any] = field(default_factory=dict)
    always: Fault | None = None
    later: str = ""  # a trouble that begins once training runs
    disk: bool = False
    seconds: float = 2.5  # of training, until the verdict has its levels


TROUBLES: Mapping[str, Trouble] = {
    each.name: each
    for each in (
        Trouble("healthy", "trainer", "trainer", step_s=0.2, shards=100, warm=100, seconds=4.0),
        Trouble("latency", "origin latency", "origin", reply={"latency_s": 0.7}),
        Trouble("rate", "origin rate", "origin", reply={"bytes_per_s": 60_000}),
        Trouble("limit 503", "origin limit", "origin", reply={"latency_s": 0.1}, always=Busy(2, 503)),
        Trouble("limit 429", "origin limit", "origin", reply={"latency_s": 0.1}, always=Busy(2, 429)),
        Trouble("down 503", "origin down", "origin", later="503", seconds=7.0),
        Trouble("down refused", "origin down", "origin", later="refused", seconds=7.0),
        Trouble("disk", "disk", "disk", shards=100, warm=100, disk=True),
        Trouble("small cache", "cache too small", "origin", shards=110, cache="8.4MB", reply={"bytes_per_s": 120_000}, seconds=12.0),
        Trouble("decode", "decode", "decode", case="decode", shards=100, warm=100),
        Trouble("locked decode", "decode", "decode", case="locked", shards=100, warm=100),
        Trouble("user code", "user code", "user code", case="map", shards=100, warm=100),
        Trouble("collate", "collate", "collate", case="collate", shards=100, warm=100),
        Trouble("transfer", "transfer", "transfer", case="transfer", shards=100, warm=100),
        Trouble("proxy", "proxy", "proxy", shards=MANY, warm=600, later="stopped"),
    )
}


@dataclass
class Scene:
    """A training that is in trouble. ``pattern``: what it reads."""

    trouble: Trouble
    sidecar: Sidecar
    origin: ScriptedOrigin
    pattern: str
    program: subprocess.Popen[str]
    log: Path

    def status(self) -> dict[str, Any]:
        return self.sidecar.status()

    def trainer_says(self) -> dict[str, Any]:
        """``fb.stalls()`` of the training, since its first batches."""
        stdin, stdout = self.program.stdin, self.program.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write("\n")
        stdin.flush()
        return _told(stdout)

    def lines(self) -> list[str]:
        """What the training has logged of its waiting so far."""
        return [line for line in self.log.read_text().splitlines() if line.startswith("forebay: stall ")]


@contextmanager
def troubled(trouble: Trouble, place: Path, *, line_s: float = 1.0, forked: bool = True) -> Iterator[Scene]:
    """From the training's first batches on, until the ``with`` ends; trouble that begins later has begun.

    ``forked``: the training need not import torch, as in tests.
    """
    with ExitStack() as stack:
        disk = stack.enter_context(bad_disk(place)) if trouble.disk else None
        ending = stack.enter_context(ExitStack())  # the origin's end
        origin = ending.enter_context(in_a_thread(ScriptedOrigin()))
        body = tar_shard(0, SAMPLES, SAMPLE_BYTES)
        for number in range(trouble.shards):
            origin.put(f"/{number:04d}.tar", body)
        preload = {} if disk is None else dict(disk.environ)
        flags = ("--cache-size", trouble.cache, "--socket", str(place / "s"))
        sidecar = stack.enter_context(running(place, *flags, allow=[origin.base], environ=preload, program=small_segments(SEGMENT_BYTES)))
        _warm(sidecar, origin, trouble.warm)
        for served in origin.shards.values():
            served.states = [replace(served.now, **trouble.reply)]
            served.always = trouble.always
        if disk is not None:
            disk.set(read=delay(SLOW_READ_S))
        pattern = f"{origin.base}/{{0000..{trouble.shards - 1:04d}}}.tar"
        environ = environment(
            place, FOREBAY_URL=sidecar.url, FOREBAY_FD="1", FOREBAY_JOB="train", FOREBAY_METER_LINE_S=f"{line_s:g}", **preload
        )
        log = place / "train.log"
        errors = stack.enter_context(log.open("wb"))
        program = stack.enter_context(_training(trouble, pattern, environ, place, errors, forked=forked and not trouble.disk))
        _told(program.stdout)
        scene = Scene(trouble, sidecar, origin, pattern, program, log)
        try:
            with _later(trouble.later, scene, ending):
                yield scene
        finally:
            assert program.stdin is not None
            program.stdin.close()


def _training(trouble: Trouble, pattern: str, environ: Mapping[str, str], place: Path, errors: IO[bytes], *, forked: bool) -> Any:
    arguments = [str(TRAINER), trouble.case, pattern, str(trouble.step_s), "2"]
    streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors, "text": True}
    if forked:
        return python_program(arguments, environ, place, **streams)
    return subprocess.Popen([sys.executable, *arguments], env=dict(environ), cwd=place, **streams)


def _told(stdout: IO[str] | None) -> dict[str, Any]:
    assert stdout is not None
    line = stdout.readline()
    assert line, "the training has ended"
    found: dict[str, Any] = json.loads(line)
    return found


def _warm(sidecar: Sidecar, origin: ScriptedOrigin, count: int) -> None:
    for number in range(count):
        sidecar.ask(sidecar.proxied(origin.url(f"/{number:04d}.tar")).removeprefix(sidecar.url))
    if count:
        sidecar.wait_complete(count)


@contextmanager
def _later(what: str, scene: Scene, ending: ExitStack) -> Iterator[None]:
    if what == "503":
        for served in scene.origin.shards.values():
            served.always = Refusing()
        yield
        for served in scene.origin.shards.values():
            served.always = None
    elif what == "refused":
        ending.close()
        try:
            yield
        finally:
            ending.enter_context(in_a_thread(ScriptedOrigin(port=scene.origin.port, shards=scene.origin.shards)))
    elif what == "stopped":
        with _repeated(lambda ended: _stopped_for_a_while(scene.sidecar, ended)):
            yield
    else:
        yield


def _stopped_for_a_while(sidecar: Sidecar, ended: threading.Event) -> None:
    sidecar.process.send_signal(signal.SIGSTOP)
    ended.wait(HELD_S)
    sidecar.process.send_signal(signal.SIGCONT)
    ended.wait(FREE_S)


@contextmanager
def _repeated(act: Callable[[threading.Event], None]) -> Iterator[None]:
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            act(ended)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
