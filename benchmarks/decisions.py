"""The picture of docs/how-it-decides.md: what was fetched, kept, read and evicted, when, in a real run.

    python benchmarks/decisions.py [--out docs/how-it-decides.svg] [--seed 1]

Two readers of one job read 40 shards for three epochs, each in an order of its own, through a real sidecar whose cache holds half of the
set; the second and third epoch are drawn. Fetches are from the origin's log, reads from the readers' own notes, and what was stored when
(and so what was evicted) from ``/v1/shards``, asked ten times a second.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / part) for part in ("tests", "proxy", "benchmarks")]

from far_set import FarSet  # noqa: E402
from plan_bytes import Case, recorded_case  # noqa: E402
from plan_record import Record  # noqa: E402

SHARDS, READERS, EPOCHS, NEED_MB, ORIGIN_MB = 40, 2, 3, 60.0, 45.0
WIDTH, LEFT, RIGHT, TOP, ROW, BOTTOM = 960, 56, 12, 74, 11, 44

STYLE = """
  .paper { fill: #ffffff } text { font: 12px system-ui, sans-serif; fill: #1f2328 } .soft { fill: #59636e }
  .grid { stroke: #d1d9e0 } .epoch { stroke: #59636e; stroke-dasharray: 4 3 }
  .kept { fill: #b6c8dd } .fetched { fill: #0969da } .hit { fill: #1a7f37 } .missed { fill: none; stroke: #1a7f37; stroke-width: 1.6 }
  .evicted { stroke: #cf222e; stroke-width: 1.8; fill: none }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0d1117 } text { fill: #f0f6fc } .soft { fill: #9198a1 } .grid { stroke: #3d444d } .epoch { stroke: #9198a1 }
    .kept { fill: #2f4562 } .fetched { fill: #58a6ff } .hit { fill: #3fb950 } .missed { stroke: #3fb950 } .evicted { stroke: #ff7b72 }
  }
"""


class Chart:
    """Time to the right, a row a shard; rows in the order in which the first drawn epoch reads them."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.start, place = record.read_from(1.0)
        self.end = record.ended
        order: dict[int, int] = {}
        for read in record.reads[place:]:
            order.setdefault(read.number, len(order))
        self.rows = order
        self.height = TOP + ROW * len(order) + BOTTOM

    def x(self, moment: float) -> float:
        return LEFT + (min(max(moment, self.start), self.end) - self.start) / (self.end - self.start) * (WIDTH - LEFT - RIGHT)

    def y(self, number: int) -> float:
        return TOP + ROW * (self.rows[number] + 0.5)

    def svg(self) -> str:
        parts = [*self._frame(), *self._kept(), *self._fetched(), *self._read(), *self._evicted(), *self._legend()]
        head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" role="img" aria-labelledby="title">'
        title = '<title id="title">What was fetched, kept, read and evicted over two epochs of a real run</title>'
        return "\n".join([head, title, f"<style>{STYLE}</style>", *parts, "</svg>"]) + "\n"

    def _frame(self) -> Iterator[str]:
        bottom = self.height - BOTTOM
        yield f'<rect class="paper" width="{WIDTH}" height="{self.height}" rx="6"/>'
        seconds = range(0, int(self.end - self.start) + 1, 2)
        for second in seconds:
            x = self.x(self.start + second)
            yield f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{bottom}"/>'
            yield f'<text class="soft" x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{second} s</text>'
        x = self.x(self.record.read_from(2.0)[0])
        yield f'<line class="epoch" x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{bottom}"/>'
        yield f'<text x="{LEFT}" y="{TOP - 10}">epoch 2</text><text x="{x + 6:.1f}" y="{TOP - 10}">epoch 3, a new shuffle</text>'
        middle = (TOP + bottom) / 2
        turned = f'transform="translate(18 {middle:.0f}) rotate(-90)" text-anchor="middle"'
        yield f'<text class="soft" {turned}>shards, as epoch 2 reads them</text>'

    def _kept(self) -> Iterator[str]:
        """A bar as long as something of the shard is stored, as thick as the part of it that is."""
        levels = [level for level in self.record.levels if level.at >= self.start - 0.2]
        for number in self.rows:
            whole, begun, held = self.record.shards.segments(number), 0.0, 0
            for level in levels:
                now = level.stored.get(number, 0)
                if now != held:
                    if held:
                        yield self._bar(number, begun, level.at, held / whole)
                    begun, held = level.at, now
            if held:
                yield self._bar(number, begun, self.end, held / whole)

    def _bar(self, number: int, begin: float, end: float, share: float) -> str:
        thick, left, right = (ROW - 3) * share, self.x(begin), self.x(end)
        where = f'x="{left:.1f}" y="{self.y(number) - thick / 2:.1f}" width="{max(0.5, right - left):.1f}" height="{thick:.1f}"'
        return f'<rect class="kept" {where}/>'

    def _fetched(self) -> Iterator[str]:
        for fetch in self.record.fetches:
            if fetch.ended >= self.start:
                x, y = self.x(fetch.ended), self.y(fetch.number)
                yield f'<path class="fetched" d="M{x - 3.5:.1f} {y - 4:.1f} l7 4 l-7 4 z"/>'

    def _read(self) -> Iterator[str]:
        """The last segment of each shard as it is read: full where nothing of the shard was fetched in that epoch."""
        for read in self.record.reads:
            if read.ended < self.start or read.index + 1 < self.record.shards.segments(read.number):
                continue
            began = self.record.read_from(float(read.epoch))[0]
            missed = any(fetch.number == read.number and began <= fetch.began < read.ended for fetch in self.record.fetches)
            kind = "missed" if missed else "hit"
            yield f'<circle class="{kind}" cx="{self.x(read.ended):.1f}" cy="{self.y(read.number):.1f}" r="3.4"/>'

    def _evicted(self) -> Iterator[str]:
        levels = self.record.levels
        for before, after in pairwise(levels):
            if after.at < self.start:
                continue
            for number, count in before.stored.items():
                if after.stored.get(number, 0) < count:
                    x, y = self.x(after.at), self.y(number)
                    yield f'<path class="evicted" d="M{x - 3:.1f} {y - 3:.1f} l6 6 m0 -6 l-6 6"/>'

    def _legend(self) -> Iterator[str]:
        x, y = LEFT, 24
        marks = (
            (f'<rect class="kept" x="{{x}}" y="{y - 8}" width="22" height="8"/>', 28, "stored (thinner: a part)"),
            (f'<path class="fetched" d="M{{x}} {y - 8} l7 4 l-7 4 z"/>', 13, "fetched"),
            (f'<circle class="hit" cx="{{x}}" cy="{y - 4}" r="3.4"/>', 9, "read, all kept from before"),
            (f'<circle class="missed" cx="{{x}}" cy="{y - 4}" r="3.4"/>', 9, "read, fetched this epoch"),
            (f'<path class="evicted" d="M{{x}} {y - 7} l6 6 m0 -6 l-6 6"/>', 12, "evicted"),
        )
        for mark, gap, text in marks:
            yield mark.format(x=x) + f'<text x="{x + gap}" y="{y}">{text}</text>'
            x += gap + int(len(text) * 6.6) + 26


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "how-it-decides.svg")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    case = Case(50, READERS, staggered=False, window=None, epochs=EPOCHS, origin_mb=ORIGIN_MB, need_mb=NEED_MB)
    record = recorded_case(case, FarSet(SHARDS, given.seed), given.seed, contents=True)
    given.out.write_text(Chart(record).svg(), encoding="utf-8")
    start = record.read_from(1.0)[0]
    mib = [value / 2**20 for value in (record.shards.bytes, record.capacity_bytes, record.fetched(start, record.ended) / 2)]
    print(f"{given.out}: set {mib[0]:.0f} MiB, cache {mib[1]:.0f} MiB, fetched an epoch {mib[2]:.0f} MiB")


if __name__ == "__main__":
    main()
