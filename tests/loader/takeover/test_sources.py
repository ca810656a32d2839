"""Which shard list a pass reads: the one that begins within its first pull."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from forebay_loader.takeover.openers import ahead_of, first_pull, noted


class Listed:
    """A shard list, as taken over."""

    urls = ("a.tar", "b.tar")

    def __iter__(self) -> Iterator[str]:
        return iter(self.urls)


Listed.__iter__ = noted(Listed.__iter__)  # type: ignore[method-assign]


def test_a_pull_within_a_pull() -> None:
    """Each has the lists that began in it alone; what begins later is of neither."""
    one, other = Listed(), Listed()
    with first_pull() as outer:
        with first_pull() as inner:
            list(one)
        list(other)
    list(Listed())
    assert (inner, outer) == ([one], [other])


def test_a_list_begins_with_its_first_item() -> None:
    """Not when it is asked for an iterator: a pipeline does that for all its stages before any is pulled."""
    source = Listed()
    with first_pull() as before:
        items = iter(source)
    with first_pull() as begun:
        next(items)
    assert (before, begun) == ([], [source])


def test_threads_do_not_mix() -> None:
    """A list that begins in another thread meanwhile is none of this pull."""
    with first_pull() as begun:
        other = threading.Thread(target=list, args=(Listed(),))
        other.start()
        other.join()
    assert begun == []


def test_one_stage_for_each_list() -> None:
    """The same for each pass over a list, which it counts; a new one where it is not known which list it is."""
    source, other = Listed(), Listed()
    assert ahead_of([source]) is ahead_of([source]) is not ahead_of([other])
    assert ahead_of([source, other]) is not ahead_of([source, other])
