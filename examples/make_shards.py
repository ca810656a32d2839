"""Small shards to try the other examples with: pictures of one colour each, with their class (.cls) and a caption (.txt).

    python examples/make_shards.py /tmp/shards                # train-000000.tar to train-000007.tar, 64 samples each
    python examples/make_shards.py /tmp/shards 4 100          # four shards of 100

They lie in a folder, and the sidecar may read it by ``--file-root``; your own lie behind ``s3://`` or ``https://``, and need no such flag.
"""

from __future__ import annotations

import io
import random
import sys
import tarfile
from pathlib import Path

from PIL import Image

COLOURS = {"red": (200, 40, 40), "green": (40, 160, 60), "blue": (40, 80, 200), "grey": (128, 128, 128)}
SIDE = 32


def sample(label: int, chance: random.Random) -> dict[str, bytes]:
    """The members of one sample, by suffix."""
    name, colour = list(COLOURS.items())[label]
    picture = io.BytesIO()
    Image.new("RGB", (SIDE, SIDE), tuple(part + chance.randint(-30, 30) for part in colour)).save(picture, "JPEG")
    return {"jpg": picture.getvalue(), "cls": str(label).encode(), "txt": f"a photo of something {name}".encode()}


def make_shards(folder: Path, shards: int, samples: int) -> str:
    """The pattern of the shards that were written."""
    chance = random.Random(1)
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        with tarfile.open(folder / f"train-{shard:06d}.tar", "w") as tar:
            for number in range(samples):
                for suffix, content in sample(chance.randrange(len(COLOURS)), chance).items():
                    entry = tarfile.TarInfo(f"{shard:06d}-{number:04d}.{suffix}")
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))
    return f"{folder}/train-{{000000..{shards - 1:06d}}}.tar"


if __name__ == "__main__":
    place, *sizes = sys.argv[1:]
    pattern = make_shards(Path(place).resolve(), *map(int, sizes or (8, 64)))
    print(f"written; as an argument of the other examples: 'pipe:cat {pattern}'")
