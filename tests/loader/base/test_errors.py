"""Errors that survive a DataLoader worker and webdataset's habits."""

from __future__ import annotations

import pickle

import pytest

from forebay_loader import LoaderError, ProxyUnreachable, ShardChanged, ShardReadError, TooManySkips


@pytest.mark.parametrize("kind", [LoaderError, ProxyUnreachable, ShardChanged, ShardReadError])
def test_rebuilt_from_one_string(kind: type[LoaderError]) -> None:
    """A DataLoader rebuilds an error as kind(text); handlers for OSError keep working."""
    assert str(kind("shard s3://b/k: gone")) == "shard s3://b/k: gone"
    assert issubclass(kind, OSError)
    assert str(pickle.loads(pickle.dumps(kind("gone")))) == "gone"


def test_too_many_skips_is_rebuilt_too() -> None:
    """By a DataLoader; no handler for a broken read takes it for one."""
    error = TooManySkips("5 skips")
    error.args = (*error.args, "https://h/a.tar?token=secret-1")
    assert str(error) == str(TooManySkips(str(error))) == "5 skips"
    assert not isinstance(error, OSError)


def test_appended_url_is_not_told() -> None:
    """webdataset appends the URL, token and all, to args; the text stays ours."""
    error = ShardReadError("shard x: gone", 404)
    error.args = (*error.args, "pipe:curl -H 'Authorization: Bearer secret-1' x")
    assert str(error) == "shard x: gone"
    assert error.status == 404
