"""A run over broken data through a real sidecar: a picture that is none, a tar that is cut, a shard that is missing, two workers."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.sidecar import Sidecar, running
from support.tarmaking import written

import forebay_loader as fb

wds = pytest.importorskip("webdataset")
torch_data = pytest.importorskip("torch.utils.data")
image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.webdataset

SAMPLES = 6
QUICK = fb.Limits(resume_s=0.3, open_s=0.1, pause_s=0.01, jitter_s=0.0)


def jpeg() -> bytes:
    made = io.BytesIO()
    image.new("RGB", (8, 8), (200, 100, 50)).save(made, "JPEG")
    return made.getvalue()


@pytest.fixture
def urls(place: Path) -> list[str]:
    """Whole; with a picture that is none; cut inside its last picture; missing."""
    folder = place / "shards"
    folder.mkdir()
    picture = jpeg()
    for shard in range(3):
        files = [(f"{shard}-{n}.jpg", b"no picture" if (shard, n) == (1, 2) else picture) for n in range(SAMPLES)]
        body = written(files)
        (folder / f"{shard}.tar").write_bytes(body[: SAMPLES * 1536 - 700] if shard == 2 else body)
    return [f"file://{folder}/{shard}.tar" for shard in range(4)]


@pytest.fixture
def sidecar(place: Path, urls: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Sidecar]:
    monkeypatch.setenv("FOREBAY_SKIPS_FILE", str(place / "skips.jsonl"))
    with running(place, "--cache-size", "200MB", "--file-root", str(place / "shards")) as found:
        monkeypatch.setenv("FOREBAY_URL", found.url)
        yield found


def test_every_fault_is_listed_and_the_rest_is_read(place: Path, sidecar: Sidecar, urls: list[str], tmp_path: Path) -> None:
    """By two workers, of whatever way the bytes came; each worker's line says what it left out."""
    log = logging.FileHandler(tmp_path / "log")
    logging.getLogger("forebay_loader").addHandler(log)
    data = fb.WebDataset(urls, handler=wds.ignore_and_continue, shardshuffle=False, limits=QUICK)
    data = data.decode("pil", handler=wds.ignore_and_continue).to_tuple("__key__", "jpg")
    try:
        loader: Any = torch_data.DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context="fork", collate_fn=str)
        found = sorted(text[2:5] for text in loader)
    finally:
        logging.getLogger("forebay_loader").removeHandler(log)
        log.close()
    assert found == sorted(f"{shard}-{n}" for shard in range(3) for n in range(SAMPLES) if (shard, n) not in ((1, 2), (2, SAMPLES - 1)))
    lines = [json.loads(line) for line in (place / "skips.jsonl").read_text().splitlines()]
    assert sorted((line["stage"], line["what"], line["shard"], line["key"]) for line in lines) == [
        ("decode", "sample", urls[1], "1-2"),
        ("open", "shard", urls[3], ""),
        ("read", "file", urls[2], f"2-{SAMPLES - 1}.jpg"),
        ("read", "shard", urls[2], ""),
    ]
    said = sorted(line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("forebay: epoch"))
    assert [line.partition("; in")[0] for line in said] == [
        f"forebay: epoch 0, worker 0: 1 of {2 * SAMPLES - 1} samples skipped (1 file), 1 of 2 shards skipped (1 read)",
        f"forebay: epoch 0, worker 1: 1 of {SAMPLES} samples skipped (1 decode), 1 of 2 shards skipped (1 open)",
    ]
