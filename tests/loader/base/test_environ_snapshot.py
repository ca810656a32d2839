"""Environment variables as they are now."""

from __future__ import annotations

import os

import pytest

from forebay_loader.base.environ_snapshot import seen

NAMES = (b"FOREBAY_A", b"FOREBAY_B")


def test_what_is_set_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and so is what is gone."""
    assert seen(NAMES) == (None, None)
    monkeypatch.setenv("FOREBAY_A", "x")
    assert seen(NAMES) == (b"x", None)
    monkeypatch.delenv("FOREBAY_A")
    assert seen(NAMES) == (None, None)


def test_another_kind_of_environ_is_asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """As another Python may have."""
    monkeypatch.setenv("FOREBAY_B", "y")
    monkeypatch.setattr(os, "environ", dict(os.environ))
    assert seen(NAMES) == (None, b"y")
