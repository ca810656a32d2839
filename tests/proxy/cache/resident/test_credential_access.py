"""Who may read a shard version: what the origin has shown to whom."""

from __future__ import annotations

from forebay_proxy.cache.resident.credential_access import MOST_CREDENTIALS, PROOF_S, CredentialAccess


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


def test_fetches_of_made_up_credentials_are_bounded() -> None:
    """Those beyond the bound prove themselves; no credential at all is always one of the known."""
    access = CredentialAccess()
    access.macs = {f"a{number}" for number in range(MOST_CREDENTIALS)}
    access.admit("one more")
    access.admit("")
    assert not access.may_read("one more", 0.0)
    assert access.may_read("", 0.0)


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
