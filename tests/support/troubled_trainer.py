"""A training that somebody asks: ``python troubled_trainer.py CASE URLS STEP_S WORKERS``; ``support.troubles`` makes what troubles it.

After its first batches, and for each line that it reads, it prints one line of JSON: what ``fb.stalls()`` says of the time since then. It
trains until its input ends, epoch after epoch.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from support.stall_trainer import BATCH, WARM_BATCHES, locked_decoder, picture, settled, slow_collate, slow_decoder, slow_picture

import forebay_loader as fb

BIG = bytes(24 << 20)


def big_collate(samples: list[Any]) -> Any:
    """Made at once, and copied three times on its way to the trainer."""
    return BIG


def loader_of(case: str, urls: str, workers: int) -> Any:
    data = fb.WebDataset(urls, shardshuffle=False)
    decoder = {"decode": slow_decoder, "locked": locked_decoder}.get(case)
    if decoder is not None:
        data = data.decode(decoder)
    data = data.map(slow_picture if case == "map" else picture)
    collate = {"collate": slow_collate, "transfer": big_collate}.get(case)
    return fb.WebLoader(data, batch_size=BATCH, num_workers=workers, collate_fn=collate, persistent_workers=True)


class Training:
    def __init__(self) -> None:
        self.ended = False
        self.before: Any = None

    def tell(self) -> None:
        found = fb.stalls().since(self.before)
        said = {"wall_s": found.wall_s, "stall_s": dict(found.stall_s), "verdict": found.verdict.as_json(), "said": str(found)}
        print(json.dumps(said), flush=True)

    def answer(self) -> None:
        for _ in sys.stdin:
            self.tell()
        self.ended = True

    def train(self, loader: Any, step_s: float) -> None:
        steps = 0
        while True:
            for _ in loader:
                steps += 1
                if steps == WARM_BATCHES:
                    settled()
                    self.before = fb.stalls()
                    self.tell()
                    threading.Thread(target=self.answer, daemon=True).start()
                if self.ended:
                    return
                time.sleep(step_s)


def main() -> None:
    case, urls, step, workers = sys.argv[1:5]
    Training().train(loader_of(case, urls, int(workers)), float(step))


if __name__ == "__main__":
    main()
