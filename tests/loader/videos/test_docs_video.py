"""docs/video.md: its samplers can be written so, its sources lead where it says, and its counters and errors are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import forebay_loader as fb
from forebay_loader.base.counters import NAMES
from forebay_loader.videos import errors
from forebay_loader.videos.sampling import sampler_of
from forebay_loader.videos.sources.choice import source_of

PAGE = (Path(__file__).parents[3] / "docs" / "video.md").read_text()


def first_cells(heading: str) -> list[str]:
    part = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return [line.split("|")[1].strip() for line in part.splitlines() if line.startswith("|")][2:]


@pytest.mark.parametrize("cell", [cell for cell in first_cells("Which frames") if cell.startswith("`")])
def test_samplers_are_samplers(cell: str) -> None:
    """As text, or as a table of epochs."""
    text = cell.strip("`")
    assert callable(sampler_of(ast.literal_eval(text) if text.startswith("{") else text))


@pytest.mark.parametrize("url", [url for url in re.findall(r"`([^`]+)`", " ".join(first_cells("Sources"))) if "://" in url or "/" in url])
def test_sources_are_chosen_so(url: str) -> None:
    """Each name on the page leads to a source, unopened."""
    assert source_of(url.replace("…", "host")) is not None


def test_every_counter_is_named() -> None:
    """And no other."""
    assert set(re.findall(r"`(video_\w+)`", PAGE)) == {name for name in NAMES if name.startswith("video_")}


def test_errors_are_errors() -> None:
    """The first column of their table."""
    named = [cell.strip("`") for cell in first_cells("When a clip is bad") if cell.startswith("`")]
    assert len(named) == 4
    assert all(issubclass(getattr(errors, name), fb.VideoError) for name in named)
