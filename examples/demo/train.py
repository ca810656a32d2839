"""A training loop as people write it, with a clock around ``next(loader)``: one epoch over shards, one line of JSON at the end.

``--through webdataset`` is plain WebDataset; ``--through forebay`` is the same pipeline with two lines changed, marked below. Progress goes
to stdout as JSON lines too, so that whoever started this knows where the epoch is.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import webdataset as wds
from PIL import Image
from torch.utils.data import DataLoader

from demo.network import Learner

__all__ = ["Epoch", "main"]

PIXELS = 48
Image.preinit()  # here once, or each worker would import Pillow's formats while its first batch waits
_PICTURES = ("jpg", "jpeg", "png", "webp")


@dataclass
class Epoch:
    """What one epoch was like. Seconds are wall clock of the training process; ``waited_s`` is the time inside ``next(loader)``."""

    samples: int = 0
    bytes: int = 0  # of the samples' files, without tar headers
    batches: int = 0
    first_batch_s: float = 0.0
    waited_s: float = 0.0
    epoch_s: float = 0.0
    error: str = ""
    losses: list[float] = field(default_factory=list)
    accuracy: float = 0.0  # over the last quarter of the epoch
    repeated: int = 0  # samples seen more than once


def pipeline(options: argparse.Namespace) -> Iterable[dict[str, Any]]:
    """Shards, split over workers, shuffled, read and batched: the usual WebDataset pipeline."""
    dataset_class: Any = wds.WebDataset  # type: ignore[attr-defined]  # webdataset declares no exports
    if options.through == "forebay":
        import forebay_loader as fb  # noqa: PLC0415  # <- one line

        dataset_class = fb.WebDataset  # <- and the other
    dataset = dataset_class(options.urls, shardshuffle=100).map(learnable if options.model else look)
    return DataLoader(dataset.batched(options.batch, collation_fn=collate), batch_size=None, num_workers=options.workers)


def look(sample: dict[str, Any]) -> dict[str, Any]:
    """Touch every byte of the sample and understand its picture's header, no more: what decoding costs is the same on every way in."""
    picture = next((sample[name] for name in _PICTURES if name in sample), None)
    if picture is not None:
        Image.open(io.BytesIO(picture)).close()
    return {"key": sample["__key__"], "bytes": _size(sample)}


def learnable(sample: dict[str, Any]) -> dict[str, Any]:
    """The picture as a small tensor, and its class."""
    with Image.open(io.BytesIO(sample["jpg"])) as image:
        image.draft("RGB", (PIXELS, PIXELS))  # the JPEG decoder scales while it decodes
        small = image.convert("RGB").resize((PIXELS, PIXELS))
    pixels = torch.frombuffer(bytearray(small.tobytes()), dtype=torch.uint8).reshape(PIXELS, PIXELS, 3)
    return {"key": sample["__key__"], "bytes": _size(sample), "image": pixels.permute(2, 0, 1), "label": int(sample["cls"])}


def _size(sample: dict[str, Any]) -> int:
    return sum(len(value) for value in sample.values() if isinstance(value, bytes))


def collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    batch: dict[str, Any] = {"keys": [sample["key"] for sample in samples], "bytes": sum(sample["bytes"] for sample in samples)}
    if "image" in samples[0]:
        batch["images"] = torch.stack([sample["image"] for sample in samples])
        batch["labels"] = torch.tensor([sample["label"] for sample in samples])
    return batch


def train(options: argparse.Namespace, tell: Any = lambda **facts: None) -> Epoch:
    """One epoch. A failing pipeline ends it early, with the error in the result."""
    epoch, learner, seen = Epoch(), Learner(PIXELS) if options.model else None, set[str]()
    loader = pipeline(options)
    started = time.perf_counter()  # imports are behind us on every way in; the workers' start is not
    try:
        for batch, waited_s in _timed(loader):
            epoch.batches += 1
            epoch.samples += len(batch["keys"])
            epoch.bytes += batch["bytes"]
            epoch.waited_s += waited_s
            epoch.first_batch_s = epoch.first_batch_s or time.perf_counter() - started
            epoch.repeated += len(batch["keys"]) - len(set(batch["keys"]) - seen)
            seen.update(batch["keys"])
            _step(options, batch, learner)
            tell(samples=epoch.samples)
            if options.limit_bytes and epoch.bytes >= options.limit_bytes:
                break
    except Exception as error:  # whatever a data set raises is this row's result
        epoch.error = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    epoch.epoch_s = time.perf_counter() - started
    if learner is not None:
        epoch.losses, epoch.accuracy = learner.losses, learner.accuracy()
    return epoch


def _timed(loader: Iterable[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], float]]:
    """Each batch with the seconds the trainer stood still for it; the first one's include the start of the workers."""
    asked = time.perf_counter()
    batches = iter(loader)
    while (batch := next(batches, None)) is not None:
        yield batch, time.perf_counter() - asked
        asked = time.perf_counter()


def _step(options: argparse.Namespace, batch: dict[str, Any], learner: Learner | None) -> None:
    if learner is None:
        time.sleep(options.step_ms / 1e3)  # an accelerator at work: the CPU is free meanwhile
    else:
        learner.step(batch["images"], batch["labels"])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m demo.train", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("urls", nargs="+", help="shards: URLs, patterns, pipe: commands")
    parser.add_argument("--through", choices=("webdataset", "forebay"), default="webdataset")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--step-ms", type=float, default=50.0, help="an emulated step (default: %(default)s)")
    parser.add_argument("--model", action="store_true", help="train a small network instead")
    parser.add_argument("--limit-bytes", type=int, default=0, help="end the epoch after this many bytes of samples")
    options = parser.parse_args(arguments)
    options.urls = [url for pattern in options.urls for url in wds.shardlists.expand_urls(pattern)]
    epoch = train(options, tell=lambda **facts: print(json.dumps(facts), flush=True))
    print(json.dumps({"epoch": asdict(epoch)}), flush=True)
    sys.exit(1 if epoch.error else 0)


if __name__ == "__main__":
    main()
