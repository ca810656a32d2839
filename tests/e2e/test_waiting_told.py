"""A training whose origin is down is told so, by its own process, while the sidecar still asks that origin again."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.scripted_answers import Answer, Call, Fault
from support.scripted_origin import ScriptedOrigin
from support.sidecar import Sidecar, environment, running
from support.tars import tar_shard
from support.warm_python import python_program

pytestmark = [pytest.mark.timeout(120)]

SHARDS, SAMPLES = 3, 5
BODY = tar_shard(0, SAMPLES, 1000)

_TRAINING = """
import json, sys
import forebay_loader as fb
print(json.dumps([sample["__key__"] for sample in fb.WebDataset(sys.argv[1:], shardshuffle=False)]), flush=True)
"""


class Down(Fault):
    """503 to every request until it is ``up``, or no answer to any that came before."""

    def __init__(self, mute: bool) -> None:
        self.mute, self.gate, self.up = mute, asyncio.Event(), False

    def answer(self, call: Call) -> Answer:
        if self.up:
            return call.honest()
        return call.honest(gate=self.gate) if self.mute else call.honest(status=503, body=b"")


def trained(place: Path, sidecar: Sidecar, mend: Callable[[], object], urls: list[str]) -> tuple[list[str], list[str]]:
    """The keys it read, and what it said; the origin works from its first word about the wait on."""
    environ = environment(place, FOREBAY_URL=sidecar.url)
    said = []
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with python_program(["-c", _TRAINING, *urls], environ, place, text=True, **pipes) as training:
        assert training.stderr is not None
        assert training.stdout is not None
        for line in training.stderr:
            said.append(line)
            if "waiting for" in line:
                mend()
        return json.loads(training.stdout.read()), said


@pytest.mark.parametrize(
    ("mute", "cause"),
    [(False, "{base}: the origin answered 503; it is asked again"), (True, "{base} has not answered yet")],
    ids=["503", "mute"],
)
async def test_a_wait_is_told_with_its_cause(mute: bool, cause: str, place: Path, origin: ScriptedOrigin) -> None:
    """Once, though each shard waits, in the sidecar's words; afterwards every sample is read."""
    down, loop, base = Down(mute), asyncio.get_running_loop(), origin.base

    def mend() -> None:
        down.up = True
        loop.call_soon_threadsafe(down.gate.set)

    urls = [f"{base}/{number}.tar" for number in range(SHARDS)]
    for number in range(SHARDS):
        origin.put(f"/{number}.tar", BODY, always=down)
    with running(place, "--cache-size", "100MB", allow=[base]) as sidecar:
        keys, said = await asyncio.to_thread(trained, place, sidecar, mend, urls)
    assert len(keys) == SHARDS * SAMPLES
    [line] = [line for line in said if "waiting for" in line]
    assert line.startswith(f"shard {base}/0.tar: waiting for ")
    assert line.endswith(cause.format(base=base) + "\n")
