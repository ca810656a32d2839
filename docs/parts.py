"""Draws docs/parts.svg, the picture of the parts in the README: ``python docs/parts.py``. A test compares the file with what this makes."""

from __future__ import annotations

from pathlib import Path

__all__ = ["drawn"]

WIDTH, HEIGHT = 860, 300
_STYLE = """
svg { font: 14px system-ui, sans-serif; color-scheme: light dark }
.box { fill: #f4f6f8; stroke: #5b6b7a; stroke-width: 1.2; rx: 8 }
.ours { fill: #dcecff; stroke: #1f5fa8 }
.node { fill: none; stroke: #9aa7b3; stroke-dasharray: 5 4; rx: 12 }
.line { stroke: #5b6b7a; stroke-width: 1.6; fill: none; marker-end: url(#tip) }
.tip { fill: #5b6b7a }
text { fill: #16212b; text-anchor: middle }
.small { font-size: 12px; fill: #4a5863 }
.name { font-weight: 600 }
@media (prefers-color-scheme: dark) {
  .box { fill: #22303c; stroke: #93a5b5 } .ours { fill: #17406b; stroke: #7db8f5 } .line { stroke: #93a5b5 } .tip { fill: #93a5b5 }
  text { fill: #eef3f7 } .small { fill: #b7c4cf }
}
"""


def _box(x: int, y: int, width: int, height: int, name: str, *small: str, ours: bool = False) -> str:
    middle, top = x + width // 2, y + height // 2 - 8 * len(small) + 5
    lines = "".join(f'<text class="small" x="{middle}" y="{top + 17 * (at + 1)}">{text}</text>' for at, text in enumerate(small))
    kind = "box ours" if ours else "box"
    box = f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}"/>'
    return f'{box}<text class="name" x="{middle}" y="{top}">{name}</text>{lines}'


def _line(path: str, label: str = "", x: int = 0, y: int = 0) -> str:
    said = f'<text class="small" x="{x}" y="{y}">{label}</text>' if label else ""
    return f'<path class="line" d="{path}"/>{said}'


def drawn() -> str:
    """The picture as SVG."""
    parts = [
        f'<rect class="node" x="10" y="10" width="540" height="{HEIGHT - 20}"/>',
        '<text class="small" x="66" y="32">your machine</text>',
        _box(30, 50, 150, 64, "trainer", "one process a GPU"),
        _box(30, 190, 150, 74, "workers", "of its DataLoader,", "webdataset as it is"),
        _line("M 105 190 V 118", "batches", 136, 158),
        _box(290, 84, 180, 100, "sidecar", "fetches ahead, serves,", "and says what training", "waits for", ours=True),
        _box(310, 218, 140, 62, "cache", "local disk, hard bound", ours=True),
        _line("M 184 242 C 240 240, 240 166, 286 160", "what comes next", 236, 262),
        _line("M 286 120 C 220 124, 216 190, 184 206", "bytes", 214, 146),
        _line("M 380 184 V 214"),
        _box(640, 34, 200, 74, "shared tier", "an S3 store near the", "cluster, if you have one"),
        _box(640, 176, 200, 88, "origins", "https, S3, GCS, Azure,", "Hugging Face, a NAS:", "your tar files"),
        _line("M 474 112 C 560 100, 580 74, 636 72", "asked first", 590, 62),
        _line("M 474 152 C 560 160, 580 216, 636 220", "ranges, resumed when cut", 632, 152),
    ]
    tip = (
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0 0L8 4L0 8z"/></marker>'
    )
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="The parts of Forebay">\n'
        f"<style>{_STYLE}</style>\n<defs>{tip}</defs>\n{body}\n</svg>\n"
    )


if __name__ == "__main__":
    Path(__file__).with_suffix(".svg").write_text(drawn(), "utf-8")
