"""Clips that lie in a folder, with their labels in a CSV file, in batches of a DataLoader; then a camera, sample after sample.

    python examples/loose_clips.py                # seconds; no sidecar is needed for local files

Twelve clips are rendered here, and one of them is cut: another stands in its place. Printed at the end: each batch's shape and labels.
"""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path
from typing import Any

import numpy
import torch

import forebay_loader as fb
from video_training import CLASSES, SIDE, rendered

CLIPS, BATCH, WORKERS = 12, 4, 2
CAMERA = "lavfi://testsrc=size=64x48:rate=25:duration=1"  # FFmpeg's own; /dev/video0 or rtsp://host/gate for a real one


def main() -> list[tuple[Any, list[int]]]:
    """Prints the batches, and returns their shapes and labels."""
    with tempfile.TemporaryDirectory() as folder:
        listed = written(Path(folder))
        clips: Any = fb.Clips(listed, video=fb.video("uniform(8)", size=SIDE, replace_corrupt=True))
        loader: Any = torch.utils.data.DataLoader(clips, BATCH, shuffle=True, num_workers=WORKERS, collate_fn=batch)
        found = [(tuple(frames.shape), labels.tolist()) for frames, labels in loader]
    for shape, labels in found:
        print(f"frames {shape}, labels {labels}")
    for sample in fb.Clips.stream(CAMERA, frames=10):
        print(f"camera: frames {sample['__key__']} and on, {int(sample['mask'].sum())} of them")
    return found


def written(folder: Path) -> Path:
    """The clips, and a CSV file of their names and labels; returns its path."""
    chance = numpy.random.default_rng(1)
    rows: list[dict[str, Any]] = [{"url": f"{number}.mp4", "label": number % CLASSES} for number in range(CLIPS)]
    for number, row in enumerate(rows):
        data = rendered(row["label"], chance)
        (folder / row["url"]).write_bytes(data[:2000] if number == 5 else data)
    with (folder / "clips.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["url", "label"])
        table.writeheader()
        table.writerows(rows)
    return folder / "clips.csv"


def batch(samples: list[Any]) -> tuple[Any, Any]:
    """Frames of all of them, N x T x H x W x 3, and labels."""
    frames = torch.as_tensor(numpy.stack([sample["frames"] for sample in samples]))
    return frames, torch.tensor([int(sample["label"]) for sample in samples])


if __name__ == "__main__":
    main()
