"""Which versions a shard's name means, to whom."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.house import FakeClock, shard_of

from forebay_proxy.cache.resident.entry import Entry
from forebay_proxy.cache.versions import versions as versions_module
from forebay_proxy.cache.versions.shard_faults import ShardFaults
from forebay_proxy.cache.versions.versions import NO_JOB_S, Versions
from forebay_proxy.core.errors import OriginError
from forebay_proxy.core.segments import DEFAULT_LAYOUT, MOST_BYTES
from forebay_proxy.core.shard import Pin, PinKind, Version

A = "https://o/set/a.tar"


class Room:
    """Entries by key, and which of them were to be claimed."""

    layout = DEFAULT_LAYOUT
    forget: Callable[[Entry], None]

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.claimed: list[Entry] = []
        self.gone: list[Entry] = []

    def claim(self, entry: Entry) -> None:
        self.claimed.append(entry)

    def outdated(self, entry: Entry) -> None:
        if not entry.in_use.stale:
            entry.in_use.stale = True
            self.gone.append(entry)
            self.forget(entry)


def versions_of(clock: FakeClock, room: Any = None, revalidate: str | float = "job") -> Versions:
    return Versions(room=room, faults=ShardFaults(clock), clock=clock, hmac_key=b"k" * 32, revalidate=revalidate)


class Named:
    """What names mean, and what an origin says of them."""

    def __init__(self) -> None:
        self.room: Any = Room()
        self.versions = versions_of(FakeClock(), self.room)
        self.room.forget = self.versions.forget

    def admit(self, etag: str, *, credential: str = "", length: int = 10, vary: tuple[str, ...] = (), modified: str = "") -> Entry:
        version = Version(f"etag:{etag}" if etag else "", Pin(PinKind.ETAG, etag), length, vary=vary, modified=modified, second_over=True)
        return self.versions.admit(shard_of(A, credential=credential), "job", version, ranged=True)


@pytest.fixture
def named() -> Named:
    return Named()


def test_the_same_version_is_the_same_entry(named: Named) -> None:
    """And its opener need not ask about it again."""
    entry = named.admit("1")
    assert named.admit("1") is entry
    assert named.versions.current == {A: entry}
    assert named.versions.is_fresh(entry, "job")
    assert not named.room.gone


def test_another_version_takes_its_place(named: Named) -> None:
    """The one before is told to be outdated, and means nothing any more."""
    before, after = named.admit("1"), named.admit("2")
    assert named.room.gone == [before]
    assert named.versions.readable(shard_of(A)) is after


def test_what_others_are_shown_stays_theirs(named: Named) -> None:
    """Each credential reads the version that the origin has shown to it."""
    mine, yours = named.admit("1", credential="me"), named.admit("2", credential="you")
    assert not named.room.gone
    found = [named.versions.readable(shard_of(A, credential=who)) for who in ("me", "you", "somebody")]
    assert found == [mine, yours, None]


def test_who_was_shown_something_else_is_let_in_no_more(named: Named) -> None:
    """The version stays for those it is shown to."""
    mine = named.admit("1", credential="me")
    named.admit("1", credential="you")
    yours = named.admit("2", credential="you")
    allowed = [mine.access.may_read(named.versions.mac(shard_of(A, credential=who)), 0.0) for who in ("me", "you")]
    assert (allowed, named.room.gone) == ([True, False], [])
    assert named.versions.current == {A: yours}


def test_an_unproven_credential_is_meant_the_latest(named: Named) -> None:
    """Which it has yet to be shown; nothing, once it is known to be shown something else."""
    entry = named.admit("1", credential="me")
    mac = named.versions.mac(shard_of(A, credential="you"))
    assert named.versions.meant(A, mac) is entry
    assert named.versions.meant(A, mac, {entry}) is None


def test_who_leaves_gives_its_name_to_what_others_are_shown(named: Named) -> None:
    """The name means nothing when the last has left."""
    mine, yours = named.admit("1", credential="me"), named.admit("2", credential="you")
    named.versions.forget(yours)
    assert named.versions.current == {A: mine}
    named.versions.forget(mine)
    assert named.versions.current == {}


def test_the_variants_of_a_shard_have_a_bound(named: Named) -> None:
    """Made-up credentials cannot have one each."""
    entries = [named.admit(str(number), credential=f"user {number}") for number in range(versions_module.MOST_VARIANTS + 3)]
    assert named.room.gone == entries[:2]


def test_what_varies_by_everything_is_nobody_elses(named: Named) -> None:
    """It serves who asked for it, and leaves."""
    entry = named.admit("", vary=("*",))
    assert (entry.in_use.stale, named.versions.current) == (True, {})


def test_the_date_of_two_writes_in_one_second_is_no_validator(named: Named) -> None:
    """Who resumes by it would join two versions."""
    date = "Tue, 14 Nov 2023 22:13:20 GMT"
    second_over = [
        named.admit(etag, modified=modified).version.second_over for etag, modified in (("1", date), ("2", date), ("3", "later"))
    ]
    assert second_over == [True, False, True]


def test_a_broken_body_is_not_gone_on_with(named: Named) -> None:
    """The version comes again, under a key that no other has."""
    broken = named.admit("1")
    broken.in_use.fault = OriginError(A, "broke off")
    anew = named.admit("1")
    assert anew is not broken
    assert (anew.key != broken.key, anew.stored.transient) == (True, True)


def test_a_version_has_one_etag_whatever_became_of_its_bytes(named: Named) -> None:
    """Of an origin that names it by a date and gives no ranges; a shard of which a part has left the cache is fetched anew."""
    version = Version("modified:then", Pin(PinKind.MODIFIED, "then"), 10, modified="then", second_over=True)
    before, after = (named.versions.admit(shard_of(A), "job", version, ranged=False) for _ in range(2))
    assert before is not after
    assert before.shown_version.etag(before.shown_key) == after.shown_version.etag(after.shown_key)
    nameless = [named.versions.admit(shard_of(A), "job", Version("", Pin(), 10), ranged=False) for _ in range(2)]
    assert len({each.shown_version.etag(each.shown_key) for each in nameless}) == 2


def test_what_was_stored_by_an_earlier_process_is_known_by_its_first_reader(named: Named) -> None:
    """To another variant it says nothing then."""
    entry = named.admit("1", credential="me")
    entry.access.variant = None
    named.versions.known_by(entry, shard_of(A, credential="me"))
    named.versions.not_shown(entry, shard_of(A, credential="you"))
    assert not named.room.gone
    named.versions.not_shown(entry, shard_of(A, credential="me"))
    assert named.room.gone == [entry]


def test_a_length_no_shard_may_have_is_refused(named: Named) -> None:
    """Before anything is kept of it."""
    with pytest.raises(OriginError):
        named.admit("1", length=MOST_BYTES + 1)
    assert not named.room.entries


# How long that holds


def entry_of(name: str = "https://o/set/a.tar") -> Entry:
    return Entry("k" * 64, shard_of(name), Version("etag:1", Pin(PinKind.ETAG, '"1"'), 10), DEFAULT_LAYOUT, ranged=True)


def test_a_comparison_holds_for_its_job() -> None:
    """However long it takes; another job asks anew."""
    clock, entry = FakeClock(), entry_of()
    versions = versions_of(clock)
    versions.checked(entry, "one")
    clock.advance(1e6)
    assert [versions.is_fresh(entry, job) for job in ("one", "two")] == [True, False]


def test_without_a_job_it_holds_for_a_minute() -> None:
    """Within one burst of readings."""
    clock, entry = FakeClock(), entry_of()
    versions = versions_of(clock)
    with versions.bursts.inside(entry.group):
        versions.checked(entry, "")
        clock.advance(NO_JOB_S / 2)
        assert versions.is_fresh(entry, "")
        clock.advance(NO_JOB_S / 2)
        assert not versions.is_fresh(entry, "")


def test_another_burst_asks_anew() -> None:
    """It may be another run."""
    clock, entry = FakeClock(), entry_of()
    versions = versions_of(clock)
    with versions.bursts.inside(entry.group):
        versions.checked(entry, "")
    clock.advance(NO_JOB_S / 2)
    with versions.bursts.inside(entry.group):
        assert not versions.is_fresh(entry, "")


@pytest.mark.parametrize(("revalidate", "fresh"), [("never", True), (10.0, False), (11.0, True)])
def test_after_ten_seconds(revalidate: str | float, *, fresh: bool) -> None:
    """By the clock, whichever job asks; never means never."""
    clock, entry = FakeClock(), entry_of()
    versions = versions_of(clock, revalidate=revalidate)
    versions.checked(entry, "one")
    clock.advance(10.0)
    assert versions.is_fresh(entry, "two") == fresh


def test_what_can_never_change_is_fresh() -> None:
    """A commit names its bytes."""
    entry = entry_of("hf://datasets/o/n@0123456789abcdef0123456789abcdef01234567/a.tar")
    assert versions_of(FakeClock(), revalidate=0.0).is_fresh(entry, "")


def test_a_silent_origin_is_left_alone_for_a_minute() -> None:
    """And no other is."""
    clock = FakeClock()
    versions = versions_of(clock)
    versions.silenced("https://o")
    assert [versions.is_silent(origin) for origin in ("https://o", "https://p")] == [True, False]
    clock.advance(NO_JOB_S)
    assert not versions.is_silent("https://o")


def test_another_process_names_what_nothing_tells_apart_otherwise() -> None:
    """Or a reader would go on in other bytes after a restart: an ETag of ours would match."""
    nameless = Version("", Pin(), 10)
    keys = {one.versions.admit(shard_of(A), "job", nameless, ranged=True).key for one in (Named(), Named())}
    assert len(keys) == 2
