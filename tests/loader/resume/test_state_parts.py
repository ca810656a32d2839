"""The seal of a state: whatever one value of it is changed into, the very samples come that would have come, or it is called damaged."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.lengths import examples
from support.tars import shard_files

import forebay_loader as fb

wds = pytest.importorskip("webdataset")
pytest.importorskip("torch")

pytestmark = [pytest.mark.webdataset, pytest.mark.filterwarnings("ignore")]

REMOVED = object()
VALUES = [
    REMOVED, None, True, -1, 0, 1, 2**63, 1.5, float("nan"), "", "x", "AAAA", "/////w==", [], {}, [1], {"a": 1}, [[0, 1]], "all", "\ud800",
]  # fmt: skip
KINDS = ("data set", "loader", "rows", "passes", "merged")


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return shard_files(tmp_path_factory.mktemp("shards"), (9, 9, 9))


def made(kind: str, urls: list[str]) -> Any:
    data = fb.WebDataset(urls, shardshuffle=True, nodesplitter=wds.split_by_node, data_parallel=(0, 1)).shuffle(6, initial=6)
    data = data.to_tuple("__key__").batched(2).repeat(2 if kind == "passes" else 1)
    if kind == "data set":
        return data
    loader = fb.WebLoader(data, batch_size=None, num_workers=0, snapshot_every=3)
    return loader.unbatched().shuffle(5).batched(2) if kind == "rows" else loader


def states(urls: list[str]) -> Iterator[tuple[str, dict[str, Any], list[Any]]]:
    """Of each kind some, each with what comes after it."""
    for kind in KINDS:
        for cut in (1, 4, 9):
            one = made(kind, urls)
            _ = list(islice(one, cut))
            state = fb.merge_states([one.state_dict()]) if kind == "merged" else one.state_dict()
            yield kind, json.loads(json.dumps(state)), rest(kind, urls, json.loads(json.dumps(state)))


def rest(kind: str, urls: list[str], state: Any) -> list[Any]:
    loader = made(kind, urls)
    loader.load_state_dict(state)
    return list(islice(loader, 100))


def paths(found: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for name, value in found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ():
        yield (*at, name)
        yield from paths(value, (*at, name))


@given(st.data())
@settings(max_examples=examples(600), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_changed(urls: list[str], cases: list[Any], data: st.DataObject) -> None:
    """Loaded, merged, described, saved: equal, or a sentence that calls it damaged or names another format or place."""
    kind, whole, after = data.draw(st.sampled_from(cases))
    state, path = copy.deepcopy(whole), data.draw(st.sampled_from(list(paths(whole))))
    value, inner = data.draw(st.sampled_from(VALUES)), state
    for name in path[:-1]:
        inner = inner[name]
    if value is REMOVED:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    looks: list[Callable[[], Any]] = [lambda: rest(kind, urls, state), lambda: fb.merge_states([state]), lambda: fb.describe_state(state)]
    for at, look in enumerate(looks):
        found, said = None, ""
        try:
            found = look()
        except ValueError as error:
            said = str(error)
        if said:
            assert "damaged" in said or path[-1] in ("format", "kind", "epoch", "made_of") or kind == "merged"
        else:
            assert at or json.dumps(found) == json.dumps(after)


@pytest.fixture(scope="module")
def cases(urls: list[str]) -> list[Any]:
    return list(states(urls))


def test_names_of_the_user_s_own(urls: list[str]) -> None:
    """What a script writes beside what a state holds does not damage it."""
    loader = made("loader", urls)
    state = {**loader.state_dict(), "step": 7}
    assert rest("loader", urls, state) == list(made("loader", urls))


def test_what_is_no_state_of_a_loader() -> None:
    with pytest.raises(ValueError, match=r"is no state of fb\.WebLoader or fb\.WebDataset: it is of type list"):
        fb.WebLoader(fb.WebDataset("x.tar"), batch_size=None).load_state_dict([])  # type: ignore[arg-type]
