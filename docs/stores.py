"""Draws docs/stores.svg from docs/stores.json, which benchmarks/memo_stores.py wrote: ``python docs/stores.py``. A test compares both."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

__all__ = ["drawn"]

KINDS = {"frames": "16 frames, 2.4 MB", "features": "features, 8 kB", "small": "64 bytes"}
COLOURS = {"lmdb": "#1f77b4", "npz": "#e08a1e", "hdf5": "#4d9a3a"}
WIDTH, HEIGHT, LEFT, TOP, PANEL, TALL = 860, 300, 70, 40, 250, 200
LOW, HIGH = 1, 5  # powers of ten
_STYLE = """
svg { font: 13px system-ui, sans-serif; color-scheme: light dark }
text { fill: #16212b } .middle { text-anchor: middle } .end { text-anchor: end } .grid { stroke: #9aa7b3; stroke-width: 0.5 }
@media (prefers-color-scheme: dark) { text { fill: #eef3f7 } }
"""


def drawn(told: dict[str, Any]) -> str:
    """The picture as SVG: entries read in a second of processor, on a logarithmic scale."""
    parts = ['<text x="8" y="18">entries read in a second of processor, by 1, 4 and 16 processes at random</text>']
    for power in range(LOW, HIGH + 1):
        y = _height(10.0**power)
        parts.append(
            f'<path class="grid" d="M {LEFT} {y} H {WIDTH - 20}"/><text class="end" x="{LEFT - 8}" y="{y + 4}">{10**power:,}</text>'
        )
    for panel, (kind, label) in enumerate(KINDS.items()):
        left = LEFT + 20 + panel * PANEL
        for number, (store, colour) in enumerate(COLOURS.items()):
            for at, (_, of_processor) in enumerate(told["reads_s"][store][kind]):
                y, x = _height(of_processor), left + number * 70 + at * 20
                parts.append(f'<rect x="{x}" y="{y}" width="17" height="{TOP + TALL - y}" fill="{colour}"/>')
            parts.append(f'<text class="middle" x="{left + number * 70 + 28}" y="{TOP + TALL + 18}">{store}</text>')
        parts.append(f'<text class="middle" x="{left + 98}" y="{TOP + TALL + 40}">{label}</text>')
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Reads from the three stores">\n'
        f"<style>{_STYLE}</style>\n{body}\n</svg>\n"
    )


def _height(value: float) -> int:
    share = (math.log10(max(value, 10.0**LOW)) - LOW) / (HIGH - LOW)
    return round(TOP + TALL * (1 - min(share, 1.0)))


if __name__ == "__main__":
    here = Path(__file__)
    here.with_suffix(".svg").write_text(drawn(json.loads(here.with_suffix(".json").read_text("utf-8"))), "utf-8")
