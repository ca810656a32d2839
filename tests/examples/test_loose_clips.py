"""The example of clips in a folder runs, and says what it read."""

from __future__ import annotations

import os

import pytest

from forebay_loader.meter.report.meter_thread import THREAD

example = pytest.importorskip("loose_clips", reason="needs torch and PyAV, as the example does")


@pytest.mark.filterwarnings("ignore")
def test_it_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve clips in batches of four, a broken one replaced by the next; and a camera until it ends."""
    monkeypatch.setattr(THREAD, "_pid", os.getpid())  # a meter's thread would outlive its test
    found = example.main()
    assert [shape for shape, _ in found] == [(4, 8, example.SIDE, example.SIDE, 3)] * 3
    labels = sorted(label for _, some in found for label in some)
    assert labels == sorted([0, 1, 2, 3, 4, 6, 6, 7, 0, 1, 2, 3])
    assert capsys.readouterr().out.splitlines()[-1] == "camera: frames 20 and on, 5 of them"
