"""Equal steps with a real sidecar: the first epoch counts the samples as it is read, the next ones share them out exactly."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fake_proxy import FakeServer
from support.ranks import run_ranks
from support.sidecar import running, wait_until
from support.tars import tar_shard

import forebay_loader as fb
from forebay_loader.samples.index_client import INDEXES, counts_of
from forebay_loader.transport.fd_endpoint import DOORS
from forebay_loader.transport.http import close_idle

wds = pytest.importorskip("webdataset")
pytest.importorskip("torch")
pytestmark = [pytest.mark.webdataset, pytest.mark.filterwarnings("ignore")]

SIZES = (12, 2, 7, 1, 9)
ALL = sorted(f"{shard:03d}-{n:03d}" for shard, size in enumerate(SIZES) for n in range(size))


@pytest.fixture
def urls(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    with FakeServer().running() as origin:
        for number, samples in enumerate(SIZES):
            origin.put(f"/{number}.tar", tar_shard(number, samples=samples, size=700))
        with running(place, "--cache-size", "1GB", "--socket", str(place / "s"), allow=[origin.url]) as sidecar:
            monkeypatch.setenv("FOREBAY_URL", sidecar.url)
            monkeypatch.setenv("FOREBAY_JOB", "job")
            DOORS.forget()
            INDEXES.forget()
            yield [f"{origin.url}/{number}.tar" for number in range(len(SIZES))]
    DOORS.forget()
    close_idle()


def test_the_second_epoch_drops_nothing(urls: list[str], tmp_path: Path) -> None:
    """Two ranks with two workers each vote in the first epoch; then every sample comes, and at most three of them twice."""

    def rank_of(rank: int) -> Any:
        data = fb.WebDataset(urls, shardshuffle=True, nodesplitter=wds.split_by_node).map(lambda sample: sample["__key__"]).listed(2)
        made = fb.WebLoader(data, batch_size=None, num_workers=2, steps_timeout_s=60.0)
        first = list(made)
        assert len(list(fb.WebDataset(urls, nodesplitter=iter))) == len(ALL)  # what the vote has left unread, too
        wait_until(lambda: counts_of(urls) is not None)
        return [first, list(made), list(made)]

    ends = run_ranks(2, rank_of, tmp_path)
    assert not [end.error for end in ends if end.error or end.hung]
    for epoch in range(3):
        keys = [key for end in ends for batch in end.value[epoch] for key in batch]
        assert len(ends[0].value[epoch]) == len(ends[1].value[epoch])
        if epoch:
            assert set(keys) == set(ALL)
            assert len(keys) - len(ALL) <= 3
        else:
            assert len(set(keys)) == len(keys)
