"""How often a pass came to a clip."""

from __future__ import annotations

import pytest

from forebay_loader.videos import clip_sample as module
from forebay_loader.videos.clip_sample import ClipPass


def test_visits_of_each_clip_are_counted() -> None:
    """Each for itself, whatever comes in between."""
    of = ClipPass(3, 1)
    assert [of.visit(name).again for name in ("a", "b", "a", "a")] == [(1, 0, 0, 0), (1, 0, 0, 0), (1, 0, 0, 1), (1, 0, 0, 2)]
    assert of.visit("c")[:2] == (3, 3)


def test_a_phase_of_its_own() -> None:
    """The table's epoch; what is drawn goes by the pass's own."""
    assert ClipPass(0, 1, 7).visit("a")[:2] == (7, 0)


def test_what_is_forgotten_is_drawn_anew_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass over more clips than fit into memory."""
    monkeypatch.setattr(module, "MOST_CLIPS", 2)
    of = ClipPass(0)
    seen = [of.visit(name) for name in ("a", "b", "c", "a", "a", "b", "c", "a")]
    assert [one.again for one in seen[:3]] == [(0, 0, 0, 0), (0, 0, 0, 0), (0, 0, 1, 0)]
    visits = [one for name, one in zip(("a", "b", "c", "a", "a", "b", "c", "a"), seen, strict=True) if name == "a"]
    assert len(set(visits)) == 4
