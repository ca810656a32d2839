"""Samplers as text."""

from __future__ import annotations

import tomllib
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_loader.videos.sampling import by_epoch, clip, fps, keyframes, sampler_of, time_warp, uniform


@pytest.mark.parametrize(
    ("text", "sampler"),
    [
        ("uniform(8)", uniform(8)),
        (" uniform( n = 8 ) ", uniform(8)),
        ('fps(4, 16, start_s="random")', fps(4, 16, "random")),
        ("fps(4, None)", fps(4)),
        ("time_warp(clip(0.5, 8, 2), 0.5)", time_warp(clip(0.5, 8, 2), 0.5)),
        ("by_epoch({0: uniform(8), 10: keyframes(8)})", by_epoch({0: uniform(8), 10: keyframes(8)})),
    ],
)
def test_as_in_code(text: str, sampler: object) -> None:
    """The same value."""
    assert sampler_of(text) == sampler


def test_as_a_table_of_toml() -> None:
    """Whose keys are texts."""
    table = tomllib.loads('[sampling]\n0 = "uniform(8)"\n10 = "keyframes(8)"\n')["sampling"]
    assert sampler_of(table) == by_epoch({0: uniform(8), 10: keyframes(8)})


def test_a_sampler_is_itself() -> None:
    """A user's own function too."""
    assert sampler_of(len) is len


@pytest.mark.parametrize(
    "text",
    [
        "", "8", "uniform", "uniform(8", "uniform(8).at(3)", "uniform(8) if 1 else 2", "uniform(2**62)", "uniform(*[8])",
        "uniform(**{'n': 8})",
        "__import__('os').system('true')", "(lambda: uniform(8))()", "uniform(n=[8 for _ in (1,)])", "uniform(b'8')", "uniform(1j)",
        "uniform(True)", "uniform(8); uniform(9)", "by_epoch({**{0: uniform(8)}})", "uniform(f'{8}')", "-uniform(8)", "uniform(-'8')",
        "(" * 500, "uniform(" * 200 + "8" + ")" * 200, "uniform(8" + " " * 2000 + ")", "uniform('\x00')", "sampler_of('uniform(8)')",
        "by_epoch({{}: uniform(8)})",
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: str) -> None:
    """Nothing is run, nothing is looked up, and the text is named."""
    with pytest.raises(ValueError, match=r"sampler|uniform"):
        sampler_of(text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("unifrom(8)", "unifrom is no sampler; they are adaptive, by_epoch"),
        ("uniform()", "missing 1 required"),
        ("uniform(8, 9, 10)", "takes from 1 to 2"),
        ("uniform(0)", "n takes a number of frames from 1"),
        ("clip(0, 8, policy='stop')", "policy is one of repeat_last, wrap, error"),
    ],
)
def test_the_mistake_is_named(text: str, told: str) -> None:
    """With what would be right."""
    with pytest.raises(ValueError, match=told):
        sampler_of(text)


@pytest.mark.parametrize(
    ("value", "error", "told"),
    [
        *((value, TypeError, "a sampler is text") for value in (8, None, ["uniform(8)"])),
        *((table, ValueError, "epochs? ") for table in ({"first": "uniform(8)"}, {"1": "uniform(8)"}, {1.5: "uniform(8)"}, {})),
    ],
)
def test_other_values_are_refused(value: object, error: type[Exception], told: str) -> None:
    """What is neither text nor table nor callable; and tables whose epochs are no whole numbers, or of which none is 0."""
    with pytest.raises(error, match=told):
        sampler_of(value)


@given(st.text(max_size=60) | st.text("uniformclpfs()[]{}*.,=-:0123 '\"_", max_size=60))
def test_any_text_is_a_sampler_or_refused(text: str) -> None:
    """By ``ValueError``, and by nothing else."""
    with suppress(ValueError):
        assert callable(sampler_of(text))
