"""Names in a profile of torch's."""

from __future__ import annotations

import sys

import pytest
from support.clips import rendered

import forebay_loader as fb
from forebay_loader.base.activity import profiled

torch = pytest.importorskip("torch")


def test_a_clip_has_its_ranges() -> None:
    """One for all of it, and one for each part, within it."""
    stage = fb.video("uniform(2)", audio=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        list(stage([{"__key__": str(number), "mp4": rendered(audio="aac")} for number in range(3)]))
    counts = {event.key: event.count for event in seen.key_averages() if event.key.startswith("forebay.")}
    assert set(counts) == {"forebay.video", "forebay.video.index", "forebay.video.decode", "forebay.video.audio"}
    assert counts["forebay.video"] == 3
    spans = {event.name: event.time_range for event in seen.events() if event.name.startswith("forebay.")}
    whole = spans["forebay.video"]
    assert all(whole.start <= span.start <= span.end <= whole.end for span in spans.values())


def test_torch_is_not_imported_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without torch has nobody to tell."""
    monkeypatch.delitem(sys.modules, "torch")
    with profiled("forebay.video") as told:
        assert told is None
    assert "torch" not in sys.modules
