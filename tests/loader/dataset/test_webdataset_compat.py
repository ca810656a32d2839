"""What stays webdataset's own, and what the argument ``urls`` may be."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

wds = pytest.importorskip("webdataset")
stock = pytest.importorskip("forebay_loader.dataset.webdataset_compat")

pytestmark = pytest.mark.webdataset


def test_patterns_and_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern is expanded as webdataset does; anything that gives strings is taken as it is."""
    monkeypatch.setenv("WDS_ROOT", "s3://b")
    assert stock.listed("${ROOT}/{0..1}.tar::x.tar") == ["s3://b/0.tar", "s3://b/1.tar", "x.tar"]
    for urls in (["a{0..1}.tar", "b"], ("a{0..1}.tar", "b"), iter(["a{0..1}.tar", "b"])):
        assert stock.listed(urls) == ["a{0..1}.tar", "b"]


@pytest.mark.parametrize(
    ("urls", "error", "match"),
    [
        *((urls, ValueError, "the list of shards is empty") for urls in ([], (), "", [""], iter(()))),
        *((urls, ValueError, "cannot handle urls of type") for urls in (None, 3, b"a.tar")),
        (["a.tar", Path("b.tar")], TypeError, "entry 1 of 2 is PosixPath"),
    ],
    ids=lambda given: str(given).partition(" at 0x")[0],  # workers that share the tests must give them one name
)
def test_what_names_no_shards(urls: Any, error: type[Exception], match: str) -> None:
    """Said before anything is read: nothing at all, what is no list, and an entry that is no string by its number."""
    with pytest.raises(error, match=match):
        stock.listed(urls)


def test_repeated_shards_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """One notice with numbers, not with URLs, which may hold a token; the list stays as it is."""
    urls = ["http://h/a.tar?token=secret", "b", "http://h/a.tar?token=secret", "b", "b"]
    assert stock.listed(urls) == urls
    assert stock.listed(urls) == urls
    assert [record.getMessage() for record in caplog.records] == [
        "3 of 5 shards are listed again (entry 2 is entry 0); each pass reads each as often"
    ]


def test_the_group_of_a_splitter() -> None:
    """The group named to webdataset's splitter is the one that is asked."""
    assert stock.group_of(functools.partial(wds.split_by_node, group="g")) == "g"
    assert stock.group_of(wds.split_by_node) is None
    assert stock.group_of(functools.partial(print, group="g")) is None
