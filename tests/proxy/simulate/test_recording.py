"""What can be replayed, and what is said of what cannot."""

from __future__ import annotations

import json

import pytest

from forebay_proxy.core.errors import ConfigError
from forebay_proxy.simulate.recordings import read_recording

LINE = '{client} - - [10/Oct/2000:13:55:{second:02d} -0700] "{request} HTTP/1.1" {status} {size} "-" "curl/8"'


def combined(request: str, *, client: str = "10.0.0.1", second: int = 0, status: int = 200, size: int = 100) -> str:
    return LINE.format(client=client, second=second, request=request, status=status, size=size)


def test_a_plan_as_the_wire_takes_it() -> None:
    """One reader, one epoch."""
    found = read_recording('{"epoch": 3, "shards": ["s3://b/1.tar", "s3://b/0.tar"]}')
    ((_, epochs),) = found.orders.items()
    assert (found.kind, [[shard.name for shard in epoch] for epoch in epochs]) == ("plan", [["s3://b/1.tar", "s3://b/0.tar"]])


def test_a_template_with_indices() -> None:
    """As in PUT /v1/plans."""
    found = read_recording('{"set": "s3://b/{000..999}.tar", "indices": [17, 3]}')
    assert [shard.name for shard in found.shards()] == ["s3://b/017.tar", "s3://b/003.tar"]


@pytest.mark.parametrize("joint", ["lines", "list"])
def test_plans_of_several_readers(joint: str) -> None:
    """A list or lines of plans with a reader; a second plan of a reader is its next epoch."""
    plans = [{"reader": f"j/0/{number}/1.0", "shards": [f"s3://b/{number}.tar"]} for number in (0, 1, 0)]
    found = read_recording(json.dumps(plans) if joint == "list" else "\n".join(map(json.dumps, plans)))
    assert {str(reader): len(epochs) for reader, epochs in found.orders.items()} == {"j/0/0/1.0": 2, "j/0/1/1.0": 1}


@pytest.mark.parametrize(
    "text",
    ["# all\n\ns3://b/{0..2}.tar\n", '"s3://b/0.tar"\n"s3://b/1.tar"\n"s3://b/2.tar"', '["s3://b/0.tar", "s3://b/1.tar", "s3://b/2.tar"]'],
)
def test_lists(text: str) -> None:
    """Lines of URLs and patterns, NDJSON, JSON."""
    found = read_recording(text)
    assert [shard.name for shard in found.shards()] == ["s3://b/0.tar", "s3://b/1.tar", "s3://b/2.tar"]
    assert not found.is_timed


def test_our_access_log() -> None:
    """Readers at their moments, from the first opening on; the lengths are known."""
    lines = [
        {"t": 100.5, "reader": "j/0/0/1.0", "shard": "s3://b/0.tar", "length": 10},
        {"t": 101.0, "reader": "j/0/1/1.0", "shard": "s3://b/1.tar", "length": 20},
        {"t": 102.0, "reader": "j/0/0/1.0", "shard": "s3://b/1.tar"},
    ]
    found = read_recording("\n".join(map(json.dumps, lines)))
    assert {str(reader): moments for reader, moments in found.moments.items()} == {"j/0/0/1.0": [0.0, 1.5], "j/0/1/1.0": [0.5]}
    assert found.lengths == {"s3://b/0.tar": 10, "s3://b/1.tar": 20}
    assert [script.moments for script in found.scripts(None)] == [((0.0, 1.5),), ((0.5,),)]
    assert [script.moments for script in found.scripts(1e6)] == [(), ()]


def opening(t: float, worker: int, shard: int, **more: object) -> str:
    return json.dumps({"t": t, "reader": f"j/0/{worker}/1.0", "shard": f"s3://b/{shard}.tar", "length": 100, **more})


def test_epochs_as_readers_told_them() -> None:
    """A change begins another; one that told none, having no plan just then, is still in the one before."""
    lines = [opening(0, 0, 0, epoch=4), opening(1, 0, 1), opening(2, 0, 1, epoch=5), opening(3, 1, 0, epoch=5)]
    first, second = read_recording("\n".join(lines)).scripts(None)
    assert [[shard.name for shard in epoch] for epoch in first.epochs] == [["s3://b/0.tar", "s3://b/1.tar"], ["s3://b/1.tar"]]
    assert [first.numbers, second.numbers, first.moments] == [(4, 5), (5,), ((0.0, 1.0), (2.0,))]


@pytest.mark.parametrize(("begins", "in_step"), [(2.0, True), (0.5, False)])
def test_readers_in_step(begins: float, in_step: bool) -> None:
    """They begin an epoch together where nobody began it while others were in the one before; each job is for itself."""
    other = {"reader": "other/0/0/1.0"}
    lines = [opening(0, 0, 0, epoch=0), opening(1, 1, 1, epoch=0), opening(9, 0, 0, epoch=0, **other)]
    lines += [opening(begins, 0, 1, epoch=1), opening(2.5, 1, 0, epoch=1)]
    assert read_recording("\n".join(lines)).in_step is in_step


def test_an_epoch_that_is_read_again() -> None:
    """A job that went back to an earlier epoch, as from a checkpoint, has no order of epochs in which others could wait for it."""
    lines = [opening(0, 0, 0, epoch=1), opening(1, 0, 1, epoch=0)]
    assert not read_recording("\n".join(lines)).in_step


def test_the_pace_of_readers_whose_waits_are_known() -> None:
    """Each shard follows when the one before is read, however long that takes; an epoch begins at its moment."""
    lines = [opening(t, 0, shard, epoch=0, waited_s=0.0, seconds=2.0) for shard, t in enumerate((0, 2, 4))]
    (script,) = read_recording("\n".join([*lines, opening(9, 0, 0, epoch=1, waited_s=0.0, seconds=2.0)])).scripts(None)
    assert (script.moments, script.own_s) == (((0.0,), (9.0,)), ((2.0, 2.0, 2.0), (2.0,)))


def test_one_line_of_our_access_log() -> None:
    """It is a JSON document by itself, and still a log."""
    assert read_recording('{"t": 1, "shard": "s3://b/0.tar", "length": 10}').is_timed


def test_a_web_servers_log() -> None:
    """GETs of tars that were answered; the pieces of one shard are one opening; what else is there is counted."""
    lines = [
        combined("GET /set/0.tar", size=5000),
        combined("GET /set/1.tar", client="10.0.0.2", second=2, status=206, size=100),
        combined("GET /set/1.tar", client="10.0.0.2", second=3, status=206, size=50),
        combined("GET /https/o/x/2.tar?a=1", second=4, size=7),
        combined("GET /favicon.ico"), combined("HEAD /set/3.tar"), combined("GET /set/4.tar", status=404),
    ]  # fmt: skip
    found = read_recording("\n".join(lines))
    host = "http://the-server-of-this-log"
    assert [[shard.name for shard in epochs[0]] for epochs in found.orders.values()] == [
        [f"{host}/set/0.tar", "https://o/x/2.tar?a=1"],
        [f"{host}/set/1.tar"],
    ]
    assert found.lengths == {f"{host}/set/0.tar": 5000, f"{host}/set/1.tar": 150, "https://o/x/2.tar?a=1": 7}
    assert found.skipped == 3
    assert list(found.moments.values()) == [[0.0, 4.0], [2.0]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "nothing in it"),
        ("# nothing\n", "nothing in it"),
        ("s3://b/0.tar\nnot a url\n", "line 2 names no shard"),
        ("s3://b/0.tar\n\ns3://b/{0..}{.tar\n", "line 3 is no URL or pattern"),
        ('{"t": 1, "shard": "s3://b/0.tar"}\n{"t": 2}\n', "line 2 is no opening"),
        ('{"t": 1, "shard": "s3://b/0.tar"}\nnonsense\n', "line 2 is not JSON"),
        ('{"t": NaN, "shard": "s3://b/0.tar"}', "line 1 is no opening"),
        ('{"t": 1, "shard": "s3://b/0.tar"}\n{"t": true, "shard": "s3://b/0.tar"}', "line 2 is no opening"),
        ('{"t": 1, "shard": "s3://b/0.tar", "epoch": "one"}\n{"t": 1, "shard": "s3://b/0.tar"}', "line 1 has no epoch"),
        ('{"t": 1, "shard": "s3://b/0.tar", "waited_s": NaN}\n{"t": 1, "shard": "s3://b/0.tar"}', "line 1 has no waited_s"),
        ('{"t": 1, "shard": "s3://b/0.tar", "length": -1}\n{"t": 1, "shard": "s3://b/0.tar"}', "line 1 has no length in bytes"),
        ('{"t": 1, "shard": "s3://b/0.tar", "reader": "me"}', "line 1 names no reader"),
        ('{"shards": ["s3://b/0.tar"], "colour": 1}', "entry 1 is no plan: unknown field 'colour'"),
        ('[{"shards": []}, {"shards": [3]}]', "entry 2 is no plan: entry 0 is not a string"),
        ('["s3://b/0.tar"', "line 1 begins a JSON list that does not end"),
        ('"s3://b/0.tar"\n7\n', "line 2 is not a JSON string"),
        (combined("GET /set/0.tar") + "\nnonsense\n", "line 2 is not a line of an access log"),
        (combined("GET /x.html"), "none of its 1 lines is a GET of a .tar"),
    ],
)
def test_the_first_bad_line_is_named(text: str, said: str) -> None:
    """By its number, with what would be right."""
    with pytest.raises(ConfigError) as caught:
        read_recording(text)
    assert said in str(caught.value)
    assert "forebay plan --help" in caught.value.next_step
