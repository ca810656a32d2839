"""Forebay's own access log, as a recording."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.simulate.recordings import read_recording


def answer(shard: str = "s3://b/0.tar", second: float = 0.0, **changed: Any) -> dict[str, Any]:
    return {
        "time": f"2026-01-01T00:00:{second:06.3f}Z", "reader": "j/0/0/1.0", "method": "GET", "shard": shard, "length": 100, "range": None,
        "status": 200, "result": "miss", "bytes": 100, "hit_bytes": 0, "waited_s": 0.1, "first_byte_s": 0.1, "seconds": 1.0, "cut": None,
        **changed,
    }  # fmt: skip


def text(*lines: dict[str, Any]) -> str:
    return "\n".join(map(json.dumps, lines))


def test_openings_in_the_order_in_which_they_began() -> None:
    """Lines are written when answers end; the lengths are known."""
    late = answer("s3://b/1.tar", 1, reader="j/0/1/1.0", length=200)
    found = read_recording(text(answer("s3://b/2.tar", 2), late, answer("s3://b/0.tar", 0.5, seconds=9.0)))
    orders = {str(reader): [shard.name for shard in epochs[0]] for reader, epochs in found.orders.items()}
    assert orders == {"j/0/0/1.0": ["s3://b/0.tar", "s3://b/2.tar"], "j/0/1/1.0": ["s3://b/1.tar"]}
    assert {str(reader): moments for reader, moments in found.moments.items()} == {"j/0/0/1.0": [0.0, 1.5], "j/0/1/1.0": [0.5]}
    assert found.lengths == {"s3://b/0.tar": 100, "s3://b/1.tar": 200, "s3://b/2.tar": 100}


def test_what_opens_no_shard_is_counted() -> None:
    """A resumed stream, a part, a HEAD, an error, a torn line; a range from the start opens one."""
    lines = [
        answer(range=[0, 9], status=206), answer(range=[10, 99], status=206), answer(method="HEAD"), answer(status=404, length=None),
        answer(status=499),
    ]  # fmt: skip
    found = read_recording(text(*lines) + '\n{"time": "2026-01-01T00')
    assert (len(found.shards()), found.skipped) == (1, 5)


def test_a_torn_first_line_hides_nothing() -> None:
    """As ``tail -c`` cuts it."""
    assert read_recording('"reader": null}\n' + text(answer())).skipped == 1


def test_a_length_that_nobody_knew() -> None:
    """A whole body tells it, a cut one does not."""
    cut = answer("s3://b/1.tar", length=None, bytes=50, cut="client_gone")
    assert read_recording(text(answer(length=None, bytes=70), cut)).lengths == {"s3://b/0.tar": 70}


def test_waits_and_epochs() -> None:
    """What an opening waited, and what went on with it waited too; its epoch as its plan told it."""
    lines = [
        answer(epoch=1, waited_s=0.5), answer(second=1, epoch=1, waited_s=0.25, status=206, range=[50, 99]), answer(second=2, epoch=2),
        answer(second=2, reader="j/0/1/1.0", status=206, range=[50, 99], waited_s=7.0),
    ]  # fmt: skip
    found = read_recording(text(*lines))
    ((reader, epochs),) = found.openings.items()
    assert [[(opening.waited_s, opening.seconds) for opening in epoch] for epoch in epochs] == [[(0.75, 1.0)], [(0.1, 1.0)]]
    assert found.numbers == {reader: [1, 2]}


def test_queries_make_two_shards_of_one_path() -> None:
    """Their digests stand for them."""
    found = read_recording(text(*(answer("https://h/get", query=query) for query in ("aa", "bb", "aa"))))
    assert [shard.name for shard in found.shards()] == ["https://h/get?aa", "https://h/get?bb"]


def test_anonymous_requests_at_a_time_are_several_readers() -> None:
    """As few as there can be: two overlap, the third begins when the first has ended."""
    found = read_recording(text(*(answer(f"s3://b/{number}.tar", second, reader=None) for number, second in enumerate((0, 0.5, 1)))))
    assert {reader.worker: [shard.name[-5:] for shard in epochs[0]] for reader, epochs in found.orders.items()} == {
        "0": ["0.tar", "2.tar"], "1": ["1.tar"],
    }  # fmt: skip


def test_a_log_without_an_opening() -> None:
    """What would give one."""
    with pytest.raises(ConfigError, match="none of its 1 lines") as refused:
        read_recording(text(answer(status=502)))
    assert "--access-log" in refused.value.next_step


@pytest.mark.parametrize("changed", [{"time": "yesterday"}, {"seconds": None}, {"reader": "me"}, {"shard": 7}, {"time": 5}])
def test_a_line_that_is_another_programs(changed: dict[str, Any]) -> None:
    """Named by its number."""
    with pytest.raises(ConfigError, match="line 2"):
        read_recording(text(answer(), answer(**changed)))
