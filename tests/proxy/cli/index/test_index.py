"""forebay index: what it asks for, and lets go of, where the set is larger than the cache."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st
from support.cli import invoke
from support.seams import swapped

from forebay_proxy.cli.client import SidecarRefused
from forebay_proxy.cli.index import index as verb

ROOM = 10


class Small:
    """A sidecar with room for ``ROOM`` units, as far as this verb sees of one: two shards are asked for at a time, by turns that chance
    decides, and a part of what found no room stays.

    ``missing`` have no origin. ``late``: so often a shard that is all here has no index yet. ``down``: for so many looks the disk fails.
    """

    def __init__(self, sizes: Mapping[str, int], *, seed: int = 0, missing: frozenset[str] = frozenset()) -> None:
        self.sizes = sizes
        self.missing = missing
        self.late: Counter[str] = Counter()
        self.down = 0
        self.held: Counter[str] = Counter()
        self.fetched: Counter[str] = Counter()
        self._chance = random.Random(seed)
        self._indexed: set[str] = set()

    def warm(self, content_type: str, body: bytes, headers: object = (), query: str = "") -> Iterator[dict[str, Any]]:
        waiting: list[str] = [shard.partition("?")[0] for shard in json.loads(body)["shards"]]
        asking, fetched, full = list[str](), Counter[str](), False
        while waiting or asking:
            while waiting and len(asking) < 2:
                asking.append(waiting.pop(0))
            name = self._chance.choice(asking)
            if name in self.missing:
                yield self._ended(name, "failed", 0)
            elif self.held[name] == self.sizes[name]:
                yield self._ended(name, "stored" if fetched[name] else "present", fetched[name])
            elif self.down or (full and not fetched[name]) or self.held.total() == ROOM:
                full = full or not self.down
                yield self._ended(name, "no-room", fetched[name])
            else:
                self.held[name] += 1
                self.fetched[name] += 1
                fetched[name] += 1
                continue
            asking.remove(name)
        yield {"event": "end", "bytes": fetched.total()}

    @staticmethod
    def _ended(name: str, result: str, size: int) -> dict[str, Any]:
        return {"event": "shard", "shard": name, "result": result, "bytes": size, "error": f"shard {name}: {result}"}

    def evict(self, selection: Mapping[str, list[str]]) -> dict[str, int]:
        return {"bytes": sum(self.held.pop(name, 0) for name in selection["shards"])}

    def status(self, timeout_s: float = 5.0) -> dict[str, Any]:
        self.down = max(0, self.down - 1)
        return {"readers": [], "plans_total": 0, "cache": {"disk_state": "down" if self.down else "normal"}}

    def samples(self, target: str, headers: object = ()) -> tuple[int, str, str]:
        name = "https:/" + target.removeprefix("/https").partition("?")[0]
        if name not in self._indexed:
            if self.held[name] < self.sizes[name] or self.late[name]:
                self.late[name] -= self.held[name] == self.sizes[name]
                raise SidecarRefused(f"shard {name}: its sample index is made once all of it is here", status=409)
            self._indexed.add(name)
        return 1, '"etag"', ""


def index(sidecar: Small, *urls: str, sizes: str = "") -> Result:
    with pytest.MonkeyPatch.context() as patched:
        swapped(patched, verb, locate=lambda *_: sidecar, PAUSE_S=0.0)
        return invoke("index", *(urls or sidecar.sizes), "--sizes", sizes, "--quiet", "--json")


def counted(done: Result) -> set[str]:
    events = [json.loads(line) for line in done.stdout.splitlines()]
    return {event["shard"] for event in events if event.get("samples") == 1 and "shard" in event}


def urls(*sizes: int) -> dict[str, int]:
    return {f"https://h.example/{number}.tar": size for number, size in enumerate(sizes)}


@given(st.lists(st.integers(1, 13), min_size=1, max_size=40), st.integers(0, 2**32), st.sets(st.integers(0, 39), max_size=3))
def test_all_that_fits_alone_is_counted(sizes: list[int], seed: int, absent: set[int]) -> None:
    """Whatever lies beside it, fails beside it, and comes first."""
    names = list(urls(*sizes))
    missing = frozenset(names[number] for number in absent if number < len(names))
    sidecar = Small(urls(*sizes), seed=seed, missing=missing)
    done = index(sidecar)
    fitting = {name for name, size in sidecar.sizes.items() if size <= ROOM} - missing
    assert counted(done) == fitting
    assert done.exit_code == (fitting != set(names))


@pytest.mark.parametrize("seed", range(8))
def test_a_small_one_beside_large_ones(seed: int) -> None:
    """It comes whole; what it leaves is no room for the rest of either of the two that were begun beside it."""
    sidecar = Small(urls(1, 9, 9), seed=seed)
    assert (index(sidecar).exit_code, sidecar.fetched.total() < 3 * 19) == (0, True)


def test_an_index_that_is_not_made_yet_is_asked_for_again() -> None:
    """A disk that is slow for a moment must not fail a count of hours; one that stays so does."""
    sidecar = Small(urls(3, 3, 3))
    slow = "https://h.example/1.tar"
    sidecar.late[slow] = 3
    assert index(sidecar).exit_code == 0
    sidecar = Small(urls(3, 3, 3))
    sidecar.late[slow] = 1000
    assert (counted(index(sidecar)), sidecar.late[slow] > 900) == (set(sidecar.sizes) - {slow}, True)


def test_a_disk_that_fails_for_a_while_is_waited_for() -> None:
    """Nothing finds room meanwhile, and nothing is given up for that; a disk that stays away ends it."""
    sidecar = Small(urls(3, 3, 8))
    sidecar.down = 10
    assert index(sidecar).exit_code == 0
    sidecar = Small(urls(3, 3, 8))
    sidecar.down = 1000
    done = index(sidecar)
    assert (done.exit_code, counted(done), sidecar.down > 800) == (1, set(), True)


@pytest.mark.parametrize("proof", ["access_token=hunter2", "X-Amz-Credential=hunter2&X-Amz-Signature=hunter2"])
def test_what_proves_who_asks_is_not_said(tmp_path: Path, proof: str) -> None:
    """Neither of what was counted nor of what was not; the next run goes on from a file that has none of it either."""
    sizes = tmp_path / "sizes.json"
    for name, code in (("0", 0), ("absent", 1)):
        sidecar = Small({f"https://h.example/{name}.tar": 1}, missing=frozenset({"https://h.example/absent.tar"}))
        done = index(sidecar, f"https://h.example/{name}.tar?{proof}", sizes=str(sizes))
        assert (done.exit_code, f"https://h.example/{name}.tar" in done.stdout) == (code, True)
        assert "hunter2" not in done.output
    assert not any(b"hunter2" in file.read_bytes() for file in tmp_path.iterdir())
