"""What tests of a stage do in its processes, and to its samples: importable by name, as a process that is spawned needs it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from support.scripted_origin import ScriptedOrigin
from support.tars import tar_shard

from forebay_stage.errors import StageError
from forebay_stage.spec import Input
from forebay_stage.task import AssembleTask, Finished, Task, run_task

__all__ = [
    "Inline", "annotated", "die_once", "dies_once", "doubled", "fail", "files_of", "halves", "inputs_of", "nonsense", "put_shards",
    "raises_on_two", "second_hidden", "slow", "wait_for_ever", "wanders",
]  # fmt: skip


class Inline:
    """An engine that does the tasks here, one after the other."""

    def __init__(self) -> None:
        self.done: list[str] = []

    def run(self, tasks: Iterable[Task]) -> Any:
        for task in tasks:
            self.done.append(task.output)
            yield run_task(task)


def put_shards(origin: ScriptedOrigin, prefix: str, counts: Iterable[int], size: int = 300) -> list[str]:
    """Shards of so many samples, each with its URL."""
    found = []
    for number, samples in enumerate(counts):
        path = f"/{prefix}/{number:02d}.tar"
        origin.put(path, tar_shard(number, samples, size), etag=f'"{prefix}-{number}"')
        found.append(origin.url(path))
    return found


def inputs_of(origin: ScriptedOrigin, urls: Iterable[str]) -> list[Input]:
    """As the plan would note them."""
    found = []
    for url in urls:
        (state,) = origin.shards[url.removeprefix(origin.base)].states
        found.append(Input(url, str(state.etag), len(state.body)))
    return found


def files_of(folder: Path) -> dict[str, bytes]:
    """All that a reader of the destination sees."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


# Steps


def doubled(sample: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**sample, "__key__": f"{sample['__key__']}-{number}"} for number in range(2)]


def halves(sample: dict[str, Any]) -> dict[str, Any] | None:
    return sample if int(sample["__key__"].rpartition("-")[2]) % 2 else None


def raises_on_two(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["__key__"].endswith("-002"):
        raise ValueError("two is too much")
    return sample


def nonsense(sample: dict[str, Any]) -> Any:
    return [sample["__key__"]]


def second_hidden(sample: dict[str, Any]) -> list[dict[str, Any]]:
    return [sample, {"__key__": "__hidden", "f__": b"a name as of what is about the shard"}]


def slow(sample: dict[str, Any]) -> dict[str, Any]:
    time.sleep(0.02)
    return sample


def dies_once(sample: dict[str, Any]) -> dict[str, Any]:
    """Kills its process at one sample of the set, if ``STAGE_MARKS`` names a folder and nobody has died there."""
    if (folder := os.environ.get("STAGE_MARKS")) and sample["__key__"].endswith("-007"):
        try:
            (Path(folder) / "died").touch(exist_ok=False)
        except FileExistsError:
            return sample
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def wanders(sample: dict[str, Any]) -> dict[str, Any]:
    os.chdir("/")
    return sample


# Tasks of the local engine: ``output`` is what they are about


def annotated(task: AssembleTask) -> Finished:
    return Finished(task.output, os.getpid(), 0, "")


def die_once(task: AssembleTask) -> Finished:
    """``destination``: a folder of marks. "always" dies each time."""
    mark = Path(task.destination) / task.output
    if task.output == "always" or (task.output == "once" and not mark.exists()):
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return annotated(task)


def fail(task: AssembleTask) -> Finished:
    raise StageError(f"output {task.output}: no", next_step="stop asking")


def wait_for_ever(task: AssembleTask) -> Finished:
    (Path(task.destination) / str(os.getpid())).touch()
    time.sleep(600)
    return annotated(task)
