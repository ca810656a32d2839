"""What a table knows, line by line."""

from __future__ import annotations

import json
from pathlib import Path

from support.clip_infos import steady

from forebay_loader.videos.metadata.clip_lines import listed
from forebay_loader.videos.metadata.clip_table import ClipTable
from forebay_loader.videos.metadata.record import ClipRecord


def test_a_line_for_each_clip(tmp_path: Path) -> None:
    """By name, in columns; what nobody looked at is a dash, and no name reaches a terminal as a command."""
    table = ClipTable(tmp_path / "a.clips")
    names = ("s3://b/1.tar\nb.mp4", "s3://b/0.tar\na.mp4", "odd\x1b[2J.mp4")
    table.add([ClipRecord(name, 7, "", steady(10 * number + 10)) for number, name in enumerate(names)])
    found = list(listed(table, as_json=False))
    assert [line.split()[:2] for line in found] == [
        ["clip", "frames"], ["'odd\\x1b[2J.mp4'", "30"], ["s3://b/0.tar/a.mp4", "20"], ["s3://b/1.tar/b.mp4", "10"],
    ]  # fmt: skip
    assert len({len(line) for line in found}) == 1
    assert found[1].endswith(" -")
    assert [json.loads(line)["clip"] for line in listed(table, as_json=True)] == [
        "odd\x1b[2J.mp4",
        "s3://b/0.tar/a.mp4",
        "s3://b/1.tar/b.mp4",
    ]
