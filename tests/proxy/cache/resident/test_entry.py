"""One version of a shard: what is the same version, what may be claimed of it."""

from __future__ import annotations

import asyncio

import pytest
from support.house import shard_of

from forebay_proxy.cache.resident.digest_state import DigestState, DigestVerdict
from forebay_proxy.cache.resident.entry import (
    MOST_CREDENTIALS,
    PROOF_S,
    CredentialAccess,
    Entry,
    VersionTrust,
    VersionUse,
)
from forebay_proxy.core.checksums import Checksums
from forebay_proxy.core.segments import DEFAULT_LAYOUT, SEGMENT_BYTES
from forebay_proxy.core.shard import Pin, PinKind, Version, store_key
from forebay_proxy.store.index.row import Row

NAME = "https://o/a.tar"
SHARD = shard_of(NAME)


def version_of(etag: str = "1", length: int | None = 2 * SEGMENT_BYTES, encoding: str = "") -> Version:
    return Version(f'etag:"{etag}"', Pin(PinKind.ETAG, f'"{etag}"'), length, encoding)


def entry_of(version: Version | None = None, *, ranged: bool = True, transient: bool = False) -> Entry:
    version = version or version_of()
    return Entry(store_key(NAME, version.identity), SHARD, version, DEFAULT_LAYOUT, ranged=ranged, transient=transient)


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (version_of(), True),
        (version_of(length=None), True),
        (version_of("2"), False),
        (version_of(length=5), False),
        (version_of(encoding="gzip"), False),
    ],
)
async def test_a_version_is_identity_length_and_encoding(other: Version, same: bool) -> None:
    """A length nobody knows contradicts nothing."""
    assert entry_of().same_version(other) is same


async def test_without_identity_nothing_is_the_same() -> None:
    """Two answers cannot be told apart."""
    nameless = Version("", Pin(), 5)
    assert not entry_of(nameless).same_version(nameless)


def test_an_encoded_body_is_shown_under_a_name_of_its_own() -> None:
    """Its origin may have one ETag for it and for the plain bytes: who read the beginning of one must not be given the other's rest."""
    shown = [entry_of(version_of(encoding=encoding)) for encoding in ("", "gzip", "br")]
    assert len({entry.shown_version.etag(entry.shown_key) for entry in shown}) == 3
    assert shown[0].shown_version.etag(shown[0].shown_key) == '"1"'


async def test_what_may_outlive_the_process() -> None:
    """Something with identity and length that is not stale, and whole if it cannot be asked in pieces."""
    assert entry_of().durable
    assert not entry_of(transient=True).durable
    assert not entry_of(version_of(length=None)).durable
    assert not entry_of(ranged=False).durable
    stale = entry_of()
    stale.in_use.stale = True
    assert not stale.durable
    whole = entry_of(ranged=False)
    whole.segments.land(0, 1)
    whole.segments.land(1, 1)
    assert whole.durable


async def test_a_row_comes_back_as_it_was() -> None:
    """Sums, credentials, version; of the same boot it is trusted."""
    entry = entry_of()
    entry.access.macs = {"b", "a"}
    entry.segments.land(1, 77)
    again = Entry.of_row(SHARD, entry.row("boot"), "boot", DEFAULT_LAYOUT)
    assert (again.key, again.access.macs, list(again.segments.stored()), again.version) == (entry.key, {"a", "b"}, [1], entry.version)
    assert not again.segments.unverified


async def test_a_row_stays_what_was_claimed() -> None:
    """The commit makes it into text later, and in another thread."""
    entry = entry_of()
    entry.segments.land(0, 7)
    row = entry.row("boot")
    entry.segments.leave(0)
    entry.segments.land(1, 8)
    assert list(row.sums) == [0]


async def test_segments_of_another_boot_are_verified_first() -> None:
    """All of them; and until all are, nothing new is claimed to be trusted."""
    row = Row.of(NAME, version_of(), (), "old", Checksums([5, 6]))
    entry = Entry.of_row(SHARD, row, "new", DEFAULT_LAYOUT)
    assert entry.segments.unverified == {0, 1}
    entry.segments.unverified.discard(0)
    assert Entry.of_row(SHARD, entry.row("new"), "new", DEFAULT_LAYOUT).segments.unverified == {0, 1}
    entry.segments.unverified.discard(1)
    assert not Entry.of_row(SHARD, entry.row("new"), "new", DEFAULT_LAYOUT).segments.unverified


async def test_a_segment_in_doubt_makes_the_row_one_to_verify() -> None:
    """Also where the entry itself is of this boot: a removal may have failed half-way."""
    row = Row.of(NAME, version_of(), (), "boot", Checksums([5, 6]))
    entry = Entry.of_row(SHARD, row, "boot", DEFAULT_LAYOUT)
    entry.segments.unverified.add(1)
    assert Entry.of_row(SHARD, entry.row("boot"), "boot", DEFAULT_LAYOUT).segments.unverified == {0, 1}


@pytest.mark.parametrize("what", ["readers", "fetching"])
def test_whoever_is_inside_keeps_it_from_being_idle(what: str) -> None:
    """A reader, or a flight."""
    use = VersionUse()
    assert use.idle
    setattr(use, what, 1)
    assert not use.idle


async def test_a_segment_that_is_leaving_keeps_it_from_being_idle() -> None:
    """Its file is being worked at."""
    use = VersionUse()
    use.leaving[0] = asyncio.get_running_loop().create_future()
    assert not use.idle


def test_the_end_waits_for_the_digest_while_one_is_expected() -> None:
    """Not before the origin has named one, nor once it has come out."""
    trust = VersionTrust()
    assert not trust.digest_pending
    trust.digest_state = DigestState(None)
    assert trust.digest_pending
    trust.digest_state.verdict = DigestVerdict.AGREES
    assert not trust.digest_pending


# What the origin has shown to whom


def test_everybody_may_read_what_needed_no_credential() -> None:
    """It was shown to who brings none; who brings one may be shown something else, and asks first."""
    access = CredentialAccess()
    assert access.may_read("", 0.0)
    assert not access.may_read("mac", 0.0)
    access.proved("mac", 0.0)
    assert access.may_read("mac", 1.0)
    access.refuse("mac")
    assert not access.may_read("mac", 1.0)
    assert access.may_read("", 1.0)


def test_a_credential_is_let_in_by_fetching_or_by_proof() -> None:
    """A proof lasts ten minutes, a fetch for good; what is shown to nobody in particular is still not proved to somebody."""
    access = CredentialAccess()
    access.macs = {"one"}
    assert access.may_read("one", 0.0)
    assert not access.may_read("two", 0.0)
    assert not access.may_read("", 0.0)
    access.proved("two", 100.0)
    assert access.may_read("two", 100.0 + PROOF_S - 1)
    assert not access.may_read("two", 100.0 + PROOF_S + 1)
    access.admit("three")
    assert access.may_read("three", 0.0)
    access.admit("")
    assert access.may_read("", 0.0)
    assert access.may_read("one", 0.0)
    assert not access.may_read("four", 0.0)


def test_the_oldest_proof_makes_room() -> None:
    """Made-up credentials are forgotten in the order in which they came; those whose time is over go first."""
    access = CredentialAccess()
    for number in range(MOST_CREDENTIALS + 1):
        access.proved(f"p{number}", 0.0)
    assert [access.may_read(f"p{number}", 1.0) for number in (0, 1, MOST_CREDENTIALS)] == [False, True, True]
    access.proved("late", PROOF_S)
    assert repr(access) == "<CredentialAccess 1 shown, 1 proved>"


def test_only_named_credentials_are_claimed() -> None:
    """Of a version that is shown to everybody the index names nobody."""
    access = CredentialAccess()
    access.admit("mac")
    assert access.claimable() == ()
    access.macs = {"b", "a"}
    assert access.claimable() == ("a", "b")


def test_a_restored_access_knows_its_variant_only_where_nobody_needs_a_credential() -> None:
    """An earlier process knew with which credential the version was opened."""
    private, public = CredentialAccess(), CredentialAccess()
    private.restore(("mac",), "chosen")
    public.restore((), "")
    assert (private.macs, private.variant, private.chosen) == ({"mac"}, None, "chosen")
    assert (public.macs, public.variant, public.chosen) == ({""}, "", "")
