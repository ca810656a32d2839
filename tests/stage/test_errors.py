"""errors.py: engines carry them from one process to another."""

from __future__ import annotations

import pickle

import pytest

from forebay_stage.errors import DestinationFailed, SampleFailed, StageBusy, StageError


@pytest.mark.parametrize(
    "error", [StageError("a", next_step="b"), SampleFailed("key", "resize", "cause"), StageBusy("a"), DestinationFailed("a", next_step="b")]
)
def test_errors_survive_a_process(error: StageError) -> None:
    """Message, next step and class stay."""
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.step, copy.__dict__) == (type(error), str(error), error.step, error.__dict__)
