"""A training script as a person writes it, and a data set whose samples can be told apart, for whole epochs in processes of their own."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.sidecar import FOREBAY, environment
from support.tars import expected, tar_shard
from support.warm_python import python_program

__all__ = ["SHARDS", "Epoch", "begin_training", "epoch_of", "make_data_set", "popen", "whole_epoch", "write_script"]

SHARDS, SAMPLES, SAMPLE_BYTES = 6, 20, 120_000
PATTERN = "train-{000..005}.tar"

_SCRIPT = """
import hashlib, json, os, sys, urllib.request
import torch
import webdataset as wds
{prelude}

def plans():
    with urllib.request.urlopen(os.environ["FOREBAY_URL"] + "/v1/status") as answer:
        return [plan["reader"] for plan in json.load(answer)["plans"]]

def main():
    data = {dataset}
    for sample in torch.utils.data.DataLoader(data, batch_size=None, num_workers=int(sys.argv[2])):
        found = plans() if "plans" in sys.argv else []
        print(json.dumps([sample["__key__"], sample["__url__"], hashlib.md5(sample["bin"]).hexdigest(), found]), flush=True)
    sys.exit(7)  # a code of its own: it must come through

if __name__ == "__main__":
    main()
"""
STOCK = "wds.WebDataset(sys.argv[1], shardshuffle=False)"
DATASET = "fb.WebDataset(sys.argv[1], shardshuffle=False)"
STAGES = """wds.DataPipeline(
        wds.SimpleShardList(sys.argv[1]), wds.split_by_worker, fb.ahead(), wds.tarfile_to_samples()
    )"""


@dataclass(frozen=True)
class Epoch:
    """What a script printed: (key, url, md5) of each sample in order, and every reader whose plan it saw."""

    samples: list[tuple[str, str, str]]
    planners: set[str]

    @property
    def urls(self) -> set[str]:
        return {url for _, url, _ in self.samples}


def make_data_set(directory: Path) -> None:
    directory.mkdir()
    for shard in range(SHARDS):
        (directory / f"train-{shard:03d}.tar").write_bytes(tar_shard(shard, SAMPLES, SAMPLE_BYTES))


def write_script(directory: Path, dataset: str = STOCK, prelude: str = "") -> Path:
    """``train.py URLS WORKERS``; it exits with 7."""
    script = directory / "train.py"
    script.write_text(_SCRIPT.format(dataset=dataset, prelude=prelude))
    return script


def epoch_of(output: str) -> Epoch:
    lines = [json.loads(line) for line in output.splitlines()]
    return Epoch([(key, url, md5) for key, url, md5, _ in lines], {reader for line in lines for reader in line[3]})


def whole_epoch(epoch: Epoch) -> bool:
    """Every sample exactly once, each with its own bytes."""
    wanted = {key: hashlib.md5(data).hexdigest() for key, data in expected(SHARDS, SAMPLES, SAMPLE_BYTES).items()}
    return len(epoch.samples) == len(wanted) and {key: md5 for key, _, md5 in epoch.samples} == wanted


def popen(directory: Path, command: Sequence[str], **variables: str) -> subprocess.Popen[str]:
    """A command as it would be typed, with ``forebay`` and this ``python`` on the path."""
    tools = directory / "tools"
    tools.mkdir(exist_ok=True)
    for name, line in (("forebay", " ".join(FOREBAY)), ("python", sys.executable)):
        (tools / name).write_text(f'#!/bin/sh\nexec {line} "$@"\n')
        (tools / name).chmod(0o755)
    environ = environment(directory, PATH=f"{tools}{os.pathsep}{os.environ['PATH']}", **variables)
    return subprocess.Popen(
        command, env=environ, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def begin_training(directory: Path, script: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """``popen`` of ``python SCRIPT ARGUMENTS`` that has imported torch and webdataset."""
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return python_program([str(script), *arguments], environment(directory, **variables), directory, text=True, **pipes)
