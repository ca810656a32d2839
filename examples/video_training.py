"""A small 3D network learns what moves where, and how it sounds, from clips in shards behind a slow origin.

    python examples/video_training.py                # two ranks (gloo), two workers each, five epochs; minutes on two processors

Every clip is rendered here: a square that moves left, right, up or down while a low or a high tone is heard. The class is both, so neither
pictures nor sound alone tell it. ``fb.video`` reads the clips: eight evenly spread frames in the first epochs, then windows that begin
anywhere. Printed at the end: each epoch's loss, and how much of its time after the first batch training waited for data.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import math
import tarfile
import tempfile
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy
import torch
import torch.distributed

import forebay_loader as fb
from demo.processes import OriginProcess

SIDE, FRAMES, FPS, RATE_HZ = 48, 24, 24, 16_000
MOVES = ((-1, 0), (1, 0), (0, -1), (0, 1))  # left, right, up, down: pixels a frame
TONES_HZ = (300, 1500)
CLASSES = len(MOVES) * len(TONES_HZ)
SAMPLING = {0: "uniform(8)", 3: "clip('random', 8, 2)"}  # by epoch
SHARDS, BATCH, WORKERS, RANKS = 12, 8, 2, 2


def rendered(label: int, chance: numpy.random.Generator) -> bytes:
    """One second of class ``label``: H.264 and AAC in an MP4."""
    made = io.BytesIO()
    with av.open(made, "w", format="mp4") as container:
        picture: Any = container.add_stream("libx264", rate=FPS, options={"preset": "veryfast", "threads": "1"})
        picture.width = picture.height = SIDE
        picture.gop_size = 6
        sound: Any = container.add_stream("aac", rate=RATE_HZ, layout="mono")
        for frame in moving(MOVES[label % len(MOVES)], chance):
            container.mux(picture.encode(frame))
        container.mux(picture.encode(None))
        container.mux(sound.encode(tone(TONES_HZ[label // len(MOVES)], chance)))
        container.mux(sound.encode(None))
    return made.getvalue()


def moving(move: tuple[int, int], chance: numpy.random.Generator) -> list[av.VideoFrame]:
    """A bright square on a dark ground, its way around the edges."""
    left, top = chance.integers(0, SIDE, 2)
    found = []
    for number in range(FRAMES):
        image = numpy.full((SIDE, SIDE, 3), 30, numpy.uint8)
        rows = (top + move[1] * number + numpy.arange(12)) % SIDE
        columns = (left + move[0] * number + numpy.arange(12)) % SIDE
        image[rows[:, None], columns] = 220
        frame = av.VideoFrame.from_ndarray(image, format="rgb24")
        frame.pts, frame.time_base = number, Fraction(1, FPS)
        found.append(frame)
    return found


def tone(hertz: int, chance: numpy.random.Generator) -> av.AudioFrame:
    times = numpy.arange(RATE_HZ * FRAMES // FPS) / RATE_HZ
    wave = 0.3 * numpy.sin(2 * math.pi * hertz * times + chance.uniform(0, 6)) + chance.normal(0, 0.02, len(times))
    frame = av.AudioFrame.from_ndarray(wave.astype(numpy.float32)[None], format="fltp", layout="mono")
    frame.sample_rate, frame.pts, frame.time_base = RATE_HZ, 0, Fraction(1, RATE_HZ)
    return frame


def write_shards(folder: Path, clips: int) -> None:
    chance = numpy.random.default_rng(7)
    for shard in range(SHARDS):
        with tarfile.open(folder / f"clips-{shard:03}.tar", "w") as tar:
            for number in range(clips // SHARDS):
                label = int(chance.integers(CLASSES))
                for suffix, content in (("mp4", rendered(label, chance)), ("json", json.dumps({"class": label}).encode())):
                    entry = tarfile.TarInfo(f"{shard:03}-{number:03}.{suffix}")
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))


class Network(torch.nn.Module):
    """Frames through two 3D convolutions, the sound's spectrum through a linear layer, both into eight classes."""

    def __init__(self) -> None:
        super().__init__()
        self.pictures = torch.nn.Sequential(
            torch.nn.Conv3d(1, 12, (3, 5, 5), stride=(1, 2, 2), padding=(1, 2, 2)),
            torch.nn.ReLU(),
            torch.nn.Conv3d(12, 24, 3, stride=(2, 2, 2), padding=1),
            torch.nn.ReLU(),
            torch.nn.AdaptiveAvgPool3d((2, 2, 2)),
            torch.nn.Flatten(),
        )
        self.sound = torch.nn.Linear(32, 16)
        self.both = torch.nn.Sequential(torch.nn.Linear(24 * 8 + 16, 64), torch.nn.ReLU(), torch.nn.Linear(64, CLASSES))

    def forward(self, frames: torch.Tensor, sound: torch.Tensor) -> torch.Tensor:
        grey = frames.float().mean(-1, keepdim=True).permute(0, 4, 1, 2, 3).contiguous() / 128 - 1
        found: torch.Tensor = self.both(torch.cat([self.pictures(grey), torch.relu(self.sound(sound))], 1))
        return found


def prepared(sample: dict[str, Any]) -> tuple[Any, Any, int]:
    """Frames, the sound's energy by pitch, the class; in a worker."""
    sound = torch.stft(torch.as_tensor(sample["audio"][0]), 400, 160, window=torch.hann_window(400), return_complex=True)
    bands = torch.nn.functional.adaptive_avg_pool1d(sound.abs().square().mean(1)[None], 32)[0]
    return sample["frames"], bands.clamp(min=1e-10).log() / 10, int(sample["json"]["class"])


def train(rank: int, urls: str, epochs: int, folder: str) -> None:
    """One rank: its share of the shards, gradients averaged with the others', every rank equally many steps."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", f"file://{folder}/meeting", rank=rank, world_size=RANKS)
    dataset = fb.WebDataset(urls, shardshuffle=True, seed=1, nodesplitter=fb_split()).shuffle(64).decode()
    dataset = dataset.compose(fb.video(SAMPLING, size=SIDE, audio=True)).map(prepared).batched(BATCH, partial=False)
    loader = fb.WebLoader(dataset, batch_size=None, num_workers=WORKERS, persistent_workers=True, multiprocessing_context="fork")
    network = torch.nn.parallel.DistributedDataParallel(Network())
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    told = []
    for epoch in range(epochs):
        told.append({"epoch": epoch, **pass_over(loader, network, optimizer, f"epoch {epoch}" if rank == 0 else "")})
    if rank == 0:
        Path(folder, "told.json").write_text(json.dumps(told))
    torch.distributed.destroy_process_group()


def fb_split() -> Any:
    return importlib.import_module("webdataset").split_by_node


def pass_over(loader: Any, network: Any, optimizer: Any, shown: str) -> dict[str, float]:
    """One epoch: its mean loss and accuracy, the seconds it took after its first batch, and those in which it waited for a batch."""
    tqdm = importlib.import_module("tqdm").tqdm
    batches = iter(tqdm(loader, desc=shown, disable=not shown))
    losses, right, seen, waited_s, began_s = [], 0, 0, 0.0, 0.0
    while True:
        asked_s = time.monotonic()
        batch = next(batches, None)
        if began_s:
            waited_s += time.monotonic() - asked_s
        began_s = began_s or time.monotonic()
        if batch is None:
            break
        frames, sound, labels = (torch.as_tensor(part) for part in batch)
        found = network(frames, sound)
        loss: Any = torch.nn.functional.cross_entropy(found, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        right, seen = right + int((found.argmax(1) == labels).sum()), seen + len(labels)
    seconds = time.monotonic() - began_s
    return {"loss": sum(losses) / len(losses), "accuracy": right / seen, "steps": len(losses), "seconds": seconds, "waited_s": waited_s}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--clips", type=int, default=384)
    options.add_argument("--epochs", type=int, default=5)
    given = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="forebay-video-") as folder:
        shards = Path(folder, "shards")
        shards.mkdir()
        write_shards(shards, given.clips)
        with (
            OriginProcess(shards, latency_ms=20, rate_mb=4) as origin,
            fb.sidecar(cache_dir=f"{folder}/cache", cache_size="1GB", allow_origin=[origin.base]),
        ):
            urls = f"{origin.base}/clips-{{000..{SHARDS - 1:03}}}.tar"
            spawn: Any = importlib.import_module("torch.multiprocessing").spawn
            spawn(train, (urls, given.epochs, folder), RANKS)
        for told in json.loads(Path(folder, "told.json").read_text()):
            text = "epoch {epoch}: loss {loss:.3f}, {accuracy:.0%} right, waited {waited_s:.1f} of {seconds:.1f} s"
            print(text.format(**told))


if __name__ == "__main__":
    main()
