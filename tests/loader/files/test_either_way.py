"""Which way a read takes: through the sidecar, past it, and back to one that only hangs."""

from __future__ import annotations

import pytest

from forebay_loader.base.errors import ProxyUnreachable
from forebay_loader.files.either_way import SidecarHangs, either, is_there
from forebay_loader.transport.source_timeout import DEAD


def through(*outcomes: str | Exception) -> tuple[list[bool], object]:
    """Gives these, one after the other; and with how much patience it was asked."""
    asked, coming = list[bool](), iter(outcomes)

    def ask(alone: bool) -> str:
        asked.append(alone)
        outcome = next(coming)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return asked, ask


def store(_: ProxyUnreachable) -> str:
    return "store"


def absent(_: ProxyUnreachable) -> str:
    raise FileNotFoundError("no such key")


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_URL", "http://127.0.0.1:9")


def test_the_sidecar_comes_first() -> None:
    asked, ask = through("sidecar")
    assert either(ask, absent) == "sidecar"
    assert asked == [False]


def test_one_that_is_gone_is_passed_by_and_remembered() -> None:
    """The next file does not look for it."""
    assert is_there()
    assert either(through(ProxyUnreachable("gone"))[1], store) == "store"
    assert DEAD.known()
    assert not is_there()


def test_one_that_is_gone_leaves_the_stores_error() -> None:
    """There is nobody to wait for."""
    with pytest.raises(FileNotFoundError):
        either(through(ProxyUnreachable("gone"))[1], absent)


def test_one_that_hangs_is_not_remembered_as_gone() -> None:
    assert either(through(SidecarHangs("stopped"))[1], store) == "store"
    assert is_there()


def test_one_that_hangs_is_waited_for_where_the_store_fails() -> None:
    """With all patience this time."""
    asked, ask = through(SidecarHangs("stopped"), "sidecar")
    assert either(ask, absent) == "sidecar"
    assert asked == [False, True]


def test_both_causes_are_said() -> None:
    _, ask = through(SidecarHangs("stopped"), ProxyUnreachable("still stopped"))
    with pytest.raises(ProxyUnreachable, match="still stopped; past the sidecar: FileNotFoundError: no such key"):
        either(ask, absent)


def test_other_trouble_is_nobodys_to_mend() -> None:
    """What the sidecar refuses is not fetched past it."""
    with pytest.raises(PermissionError):
        either(through(PermissionError("not yours"))[1], store)
