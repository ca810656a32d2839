"""What can be replayed, and what is said of what cannot."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.simulate.workload import Recording, read_recording


def orders_of(found: Recording) -> dict[str, list[list[str]]]:
    return {str(reader): [[shard.name for shard in epoch.shards] for epoch in epochs] for reader, epochs in found.orders.items()}


def test_lists() -> None:
    """Lines of URLs and patterns."""
    found = read_recording("# all\n\ns3://b/{0..1}.tar\ns3://b/2.tar\n")
    assert [shard.name for shard in found.shards()] == ["s3://b/0.tar", "s3://b/1.tar", "s3://b/2.tar"]
    assert (found.kind, found.turns) == ("list", [])


def answer(shard: object = "s3://b/0.tar", second: float = 0.0, **changed: Any) -> dict[str, Any]:
    return {
        "time": f"2026-01-01T00:00:{second:06.3f}Z", "reader": "j/0/0/1.0", "method": "GET", "shard": shard, "length": 100, "range": None,
        "status": 200, "result": "miss", "bytes": 100, "hit_bytes": 0, "waited_s": 0.1, "first_byte_s": 0.1, "seconds": 1.0, "cut": None,
        **changed,
    }  # fmt: skip


def text_of(*lines: dict[str, Any]) -> str:
    return "\n".join(map(json.dumps, lines))


def test_openings_in_the_order_in_which_they_began() -> None:
    """Lines are written when answers end; the lengths are known."""
    late = answer("s3://b/1.tar", 1, reader="j/0/1/1.0", length=200)
    found = read_recording(text_of(answer("s3://b/2.tar", 2), late, answer("s3://b/0.tar", 0.5, seconds=9.0)))
    assert orders_of(found) == {"j/0/0/1.0": [["s3://b/0.tar", "s3://b/2.tar"]], "j/0/1/1.0": [["s3://b/1.tar"]]}
    assert [str(reader) for reader in found.turns] == ["j/0/0/1.0", "j/0/1/1.0", "j/0/0/1.0"]
    assert found.lengths == {"s3://b/0.tar": 100, "s3://b/1.tar": 200, "s3://b/2.tar": 100}


def test_what_opens_no_shard_is_counted() -> None:
    """A resumed stream, a part, a HEAD, an error, a torn line; a range from the start opens one."""
    lines = [
        answer(range=[0, 9], status=206), answer(range=[10, 99], status=206), answer(method="HEAD"), answer(status=404, length=None),
        answer(status=499),
    ]  # fmt: skip
    found = read_recording(text_of(*lines) + '\n{"time": "2026-01-01T00')
    assert (len(found.shards()), found.skipped) == (1, 5)


def test_a_torn_first_line_hides_nothing() -> None:
    """As ``tail -c`` cuts it."""
    assert read_recording('"reader": null}\n' + text_of(answer())).skipped == 1


def test_a_length_that_nobody_knew() -> None:
    """A whole body tells it, a cut one does not."""
    cut = answer("s3://b/1.tar", length=None, bytes=50, cut="client_gone")
    assert read_recording(text_of(answer(length=None, bytes=70), cut)).lengths == {"s3://b/0.tar": 70}


def test_epochs_as_readers_told_them() -> None:
    """A change begins another; one that told none, having no plan just then, is still in the one before."""
    found = read_recording(text_of(answer(epoch=4), answer(second=1), answer(second=2, epoch=5), answer(second=3, epoch=4)))
    ((_, epochs),) = found.orders.items()
    assert [(epoch.number, len(epoch.shards)) for epoch in epochs] == [(4, 2), (5, 1), (4, 1)]


def test_queries_make_two_shards_of_one_path() -> None:
    """Their digests stand for them."""
    found = read_recording(text_of(*(answer("https://h/get", query=query) for query in ("aa", "bb", "aa"))))
    assert [shard.name for shard in found.shards()] == ["https://h/get?aa", "https://h/get?bb"]


def test_requests_without_a_reader_are_one_reader() -> None:
    """In the order in which they came."""
    found = read_recording(text_of(*(answer(f"s3://b/{number}.tar", number, reader=None) for number in range(2))))
    assert list(orders_of(found).values()) == [[["s3://b/0.tar", "s3://b/1.tar"]]]


@pytest.mark.parametrize("changed", [{"time": "yesterday"}, {"reader": "me"}, {"shard": 7}, {"time": 5}])
def test_a_line_that_is_another_programs(changed: dict[str, Any]) -> None:
    """Named by its number."""
    with pytest.raises(ConfigError, match="line 2"):
        read_recording(text_of(answer(), answer(**changed)))


@pytest.mark.parametrize(
    ("text", "said", "step"),
    [
        ("", "nothing in it", "--help"),
        ("# nothing\n", "nothing in it", "--help"),
        ("s3://b/0.tar\nnot a url\n", "line 2 names no shard", "--help"),
        ("s3://b/0.tar\n\ns3://b/{0..}{.tar\n", "line 3 is no URL or pattern", "--help"),
        (text_of(answer(status=502)), "none of its 1 lines", "--access-log"),
    ],
)
def test_the_first_bad_line_is_named(text: str, said: str, step: str) -> None:
    """By its number, with what would be right."""
    with pytest.raises(ConfigError) as caught:
        read_recording(text)
    assert said in str(caught.value)
    assert step in caught.value.next_step
