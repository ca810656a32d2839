"""Clips by which a decoder died: kept as lines, whatever their names."""

from __future__ import annotations

from pathlib import Path

from forebay_loader.videos.metadata.decoder_processes import DecoderDeaths


def test_what_was_said_is_kept(tmp_path: Path) -> None:
    """Of that clip, of that length and version; a line that a kill tore off costs itself only."""
    name = "s3://b/0.tar\n\udcff.mp4"
    DecoderDeaths(tmp_path / "t").add(name, 9, "v1", "signal 11")
    with (tmp_path / "t.deaths").open("a") as file:
        file.write('7\n{"name": "b", "clip_b\n')
    deaths = DecoderDeaths(tmp_path / "t")
    deaths.add("c", 1, "", "signal 6")
    for known in (deaths, DecoderDeaths(tmp_path / "t")):
        assert (known.of(name, 9, "v1"), known.of("c", 1, "")) == ("signal 11", "signal 6")
        assert (known.of(name, 8, "v1"), known.of(name, 9, "v2"), known.of("b", 1, "")) == ("", "", "")


def test_nothing_is_created_by_reading(tmp_path: Path) -> None:
    """Most tables have none."""
    assert DecoderDeaths(tmp_path / "t").of("a", 1, "") == ""
    assert list(tmp_path.glob("t*")) == []
