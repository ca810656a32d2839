"""The video example: what it renders can be read, and what it reads can be learnt."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
from support.lengths import LONG, ordinarily
from support.other_python import clean_environment
from support.verbs import verb
from support.warm_python import warm_workers

import forebay_loader as fb

example = pytest.importorskip("video_training", reason="needs torch and PyAV, as the example does")
torch = pytest.importorskip("torch")

EPOCHS, LIMIT_S = ordinarily(2, of=5, what="epochs of examples/video_training.py"), 600.0
CLIPS, LOSS_LEFT = (96, 0.85) if LONG else (48, 1.0)


def samples(count: int) -> list[tuple[object, object, int]]:
    stage, chance = fb.video("uniform(8)", size=example.SIDE, audio=True), numpy.random.default_rng(1)
    labels = [number % example.CLASSES for number in range(count)]
    clips = [{"__key__": str(at), "mp4": example.rendered(label, chance), "json": {"class": label}} for at, label in enumerate(labels)]
    return [example.prepared(stage.decoded(clip)) for clip in clips]


def test_a_clip_is_frames_sound_and_class() -> None:
    """Of the sizes that the network takes."""
    frames, sound, label = samples(2)[1]
    assert (frames.shape, sound.shape, label) == ((8, example.SIDE, example.SIDE, 3), (32,), 1)  # type: ignore[attr-defined]


def test_the_two_tones_and_the_four_ways_differ() -> None:
    """Nothing could be learnt else: sound tells the tone, frames the way."""
    found = samples(example.CLASSES)
    low, high = (found[label][1] for label in (0, len(example.MOVES)))
    assert int(low.argmax()) < int(high.argmax())  # type: ignore[attr-defined]
    ways = [numpy.asarray(found[label][0], int)[..., 0] for label in range(len(example.MOVES))]
    assert all(numpy.abs(way[1:] - way[:-1]).max() > 100 for way in ways)


def test_the_network_takes_a_batch() -> None:
    """One score for each class."""
    frames, sound, _ = zip(*samples(2), strict=True)
    scores = example.Network()(torch.as_tensor(numpy.stack(frames)), torch.stack(sound))
    assert scores.shape == (2, example.CLASSES)


def told_by_the_example(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """What it prints; in a long run as a program of its own, else here, with ranks that find torch imported."""
    arguments = [example.__file__, "--clips", str(CLIPS), "--epochs", str(EPOCHS)]
    environ = {**clean_environment(place / "run"), "PYTHONPATH": os.pathsep.join(sys.path)}
    try:
        if LONG:
            done = subprocess.run(
                [sys.executable, "-W", "ignore", *arguments], env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
            assert done.returncode == 0, done.stderr[-3000:]
            return done.stdout
        monkeypatch.setenv("XDG_RUNTIME_DIR", environ["XDG_RUNTIME_DIR"])
        monkeypatch.setattr(sys, "argv", arguments)
        with warm_workers():
            example.main()
        return capsys.readouterr().out
    finally:  # a sidecar waits a minute for its next user
        verb(environ, "stop", directory=place)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(LIMIT_S + 100)
def test_two_ranks_of_two_workers_learn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole example, small: the loss falls; in a long run, where nothing runs beside it, training waits for less than half.

    Behind an epoch's first batch.
    """
    said = told_by_the_example(tmp_path, monkeypatch, capsys)
    told = re.findall(r"^epoch \d: loss ([\d.]+), \d+% right, waited ([\d.]+) of ([\d.]+) s$", said, re.MULTILINE)
    assert len(told) == EPOCHS, said
    losses, waited_s, seconds = zip(*([float(value) for value in one] for one in told), strict=True)
    assert losses[-1] < LOSS_LEFT * losses[0], said
    assert not LONG or sum(waited_s) < 0.5 * sum(seconds), said
