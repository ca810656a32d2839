"""Video: what sampling by index saves, beside what others do on the same clips. One table, each figure with the limit it is held to.

    python benchmarks/video.py                                       all of it: two large MP4s of 2 GB, some five minutes on a quiet machine
    python benchmarks/video.py --quick                               small, in about a minute: whether it is right, not how fast
    python benchmarks/video.py --json keyframes sampling             two parts, as one JSON object; what is done meanwhile goes to stderr

| part | here | beside it |
|---|---|---|
| keyframes | 100 random keyframes of a large MP4 in a file, groups of 250 and of 30 | OpenCV seeking to each, and what is in the file |
| origin | the same MP4 behind a slow origin, through a sidecar, cold and warm | OpenCV over HTTP straight from that origin |
| sampling | 8 of 300 frames, from a warm shard | all of the clip, as ``torch_video`` did; torchcodec and SPDL where they are |
| cold | bytes of a cold clip that 8 of 300 frames read; a cold shard's first clip | all of its bytes; not announced, and warm |
| batches | a batch's time, samples a second, how busy an emulated step is: mapped shards | OpenCV frame by frame from the origin |

Times are of the clock unless a row says "of the processor"; only ratios mean something elsewhere. Beside it: ``pip install
opencv-python-headless torchcodec==0.13.0 spdl-io==0.8.0 spdl-core==0.8.0`` and the system's FFmpeg for the last three. A part that has not
begun after ``--limit-s`` is left out. Exit code 1 where a limit is broken or a part was left out.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path

import video_batches
import video_cold
import video_keyframes
import video_sampling
from figures import Figure, as_json, exactly, lines
from video_bench import QUICK, Scale, say

PARTS: dict[str, Callable[[Scale, Path], list[Figure]]] = {
    "keyframes": video_keyframes.figures,
    "sampling": video_sampling.figures,
    "cold": video_cold.figures,
    "batches": video_batches.figures,
    "origin": video_keyframes.origin_figures,
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="small clips")
    options.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    options.add_argument("--limit-s", type=float, default=300.0, help="begin no part after so many seconds (default: %(default)s)")
    for one in fields(Scale):
        name = one.name.replace("_", "-")
        options.add_argument(f"--{name}", type=float if isinstance(one.default, float) else int, help=f"default: {one.default:g}")
    options.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[])
    given = options.parse_args(arguments)
    told = {one.name: value for one in fields(Scale) if (value := getattr(given, one.name)) is not None}
    scale = replace(QUICK if given.quick else Scale(), **told)
    os.environ.setdefault("FOREBAY_JOB", "benchmark-video")
    rows = _rows(given.parts or list(PARTS), scale, given.limit_s)
    print(
        as_json("video", " ".join(["video.py", *(sys.argv[1:] if arguments is None else arguments)]), rows)
        if given.json
        else "\n".join(lines(rows))
    )
    return 0 if all(row.ok for row in rows) else 1


def _rows(parts: list[str], scale: Scale, limit_s: float) -> list[Figure]:
    begun = time.monotonic()
    rows: list[Figure] = []
    left_out = 0
    for part in parts:
        if time.monotonic() - begun > limit_s:
            say(f"{part}: left out, {limit_s:g} s are over (--limit-s)")
            left_out += 1
            continue
        with tempfile.TemporaryDirectory(prefix="forebay-video-") as folder:
            rows += PARTS[part](scale, Path(folder))
    say("done")
    return [*rows, exactly("parts left out", left_out, 0)]


if __name__ == "__main__":
    sys.exit(main())
