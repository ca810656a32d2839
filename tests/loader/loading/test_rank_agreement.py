"""What ranks say of their loaders: which differences count, and how those that belong together are found."""

from __future__ import annotations

import pytest

from forebay_loader.loading.rank_agreement import Agreement, Said, difference

RANKS = [4, 6]


class Store:
    """A process group's store in this process."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.dead = False

    def set(self, key: str, value: str) -> None:
        if self.dead:
            raise RuntimeError("Connection reset by peer")
        self.kept[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.kept[key]

    def check(self, keys: list[str]) -> bool:
        if self.dead:
            raise RuntimeError("Connection reset by peer")
        return all(key in self.kept for key in keys)


def pair(store: Store, *said: Said) -> list[Agreement]:
    made = [Agreement(store, RANKS, place) for place in range(2)]
    for one, words in zip(made, said, strict=False):
        one.say(words)
    return made


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("samples", "samples an epoch (with_epoch on the data set): none on rank 4, 7 on rank 6. Give all ranks the same"),
        ("size", "ranks that share the data: 2 on rank 4, 7 on rank 6. Give all ranks the same"),
    ],
)
def test_each_value_is_compared(name: str, text: str) -> None:
    """The message names the value of both ranks."""
    assert difference([Said(0, 2), Said(1, 2)._replace(**{name: 7})], RANKS) == text


def test_parts_that_nobody_reads() -> None:
    """Two ranks that were told to be the same one; with more ranks than parts some may share one, but none may be left out."""
    assert difference([Said(0, 2), Said(0, 2)], RANKS).startswith("rank 4 and rank 6 both read as rank 0 of 2, and nobody reads as rank 1")
    tensor_parallel = [Said(0, 2), Said(0, 2), Said(1, 2), Said(1, 2)]
    assert difference(tensor_parallel, [0, 1, 2, 3]) == ""
    assert difference([Said(0, 2)] * 4, [0, 1, 2, 3]) != ""


def test_a_part_of_more_than_the_group() -> None:
    """A process group on each node, and parts over all of them: what the others read is not known here."""
    assert difference([Said(2, 8), Said(3, 8)], RANKS) == ""


def test_a_store_that_died(caplog: pytest.LogCaptureFixture) -> None:
    """It ends with rank 0 or its launcher: nothing is compared any more, nothing raises, and who cannot leave word says so."""
    store = Store()
    first, second = pair(store, Said(0, 2, 3))
    store.dead = True
    first.look()
    second.say(Said(1, 2, 4))
    assert first.decided
    assert second.decided
    assert "the store of the process group does not answer" in caplog.text
