"""with_length, made so that it can be pickled."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from forebay_loader.dataset.webdataset_compat import picklable_length, with_length

wds = pytest.importorskip("webdataset")

pytestmark = pytest.mark.webdataset


def double(sample: int) -> int:
    return 2 * sample


def pipeline() -> Any:
    return wds.DataPipeline([[1, 2, 3]], wds.map(double))


class Mine(wds.DataPipeline):  # type: ignore[misc]
    """A user's own class."""

    def __len__(self) -> int:
        return 7


def test_a_length_can_be_pickled() -> None:
    """Length, class and samples arrive."""
    made = with_length(pipeline(), 10)
    other = pickle.loads(pickle.dumps(made))
    assert (len(other), list(other)) == (10, [2, 4, 6])
    assert isinstance(other, wds.DataPipeline)
    assert type(other) is type(made)


def test_composing_keeps_the_length() -> None:
    """A stage put behind leaves it; so does a copy."""
    made = with_length(pipeline(), 10).compose(wds.map(double))
    assert (len(made), list(made)) == (10, [4, 8, 12])
    assert len(copy.copy(made)) == len(copy.deepcopy(made)) == 10


def test_a_second_length_replaces_the_first() -> None:
    """No class upon class."""
    made = with_length(with_length(pipeline(), 10), 20)
    assert len(pickle.loads(pickle.dumps(made))) == 20
    assert type(made).__bases__ == (wds.DataPipeline,)


@pytest.mark.filterwarnings("ignore:.*with_length")
def test_webdatasets_own_length_is_mended() -> None:
    """What webdataset made cannot be pickled; afterwards it can."""
    made = pipeline().with_length(10)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(made)
    assert picklable_length(made) is made
    other = pickle.loads(pickle.dumps(made))
    assert (len(other), list(other)) == (10, [2, 4, 6])


def test_others_are_left_alone() -> None:
    """A pipeline without a length, and a class with one of its own, stay what they are."""
    assert type(picklable_length(pipeline())) is wds.DataPipeline
    own = Mine([[1]])
    assert (type(picklable_length(own)), len(own)) == (Mine, 7)
