"""Which credentials may read one shard version: those the origin has shown it to, or said yes to a moment ago."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["CredentialAccess"]

PROOF_S = 600.0  # the contract: another credential is let in for 10 minutes once the origin has said yes
# Of each version, because clients may make up credentials (a public origin says yes to all of them). One that is forgotten costs one small
# request to the origin when it comes back.
MOST_CREDENTIALS = 256


class CredentialAccess:
    """Credentials are known by their HMACs, "" for none at all. Not thread-safe: the event loop's only."""

    __slots__ = ("_proofs", "chosen", "macs", "variant", "vary")

    def __init__(self) -> None:
        self.macs = {""}  # those the version was shown to; the others prove themselves
        self.variant: str | None = ""  # of the credential it was opened with, less signatures; None: an earlier process did
        self.vary: tuple[str, ...] = ()  # request headers that it was chosen by
        self.chosen = ""  # HMAC of what chose it; where its identity is weak, another choice is another version
        self._proofs: dict[str, float] = {}  # HMAC -> monotonic seconds until which it may read

    def __repr__(self) -> str:
        return f"<CredentialAccess {len(self.macs)} shown, {len(self._proofs)} proved>"

    def restore(self, macs: Iterable[str], chosen: str) -> None:
        """Take over the HMACs that an earlier process claimed; the variant is not known where only some credentials may read."""
        known = set(macs)
        self.macs, self.variant, self.chosen = known or {""}, None if known else "", chosen

    def claimable(self) -> tuple[str, ...]:
        """The HMACs for the index. None where no credential is needed: after a restart a request with one proves it anew."""
        return () if "" in self.macs else tuple(sorted(self.macs))

    def admit(self, mac: str) -> None:
        """The origin has shown the version to this credential, or to none."""
        if not mac or len(self.macs) < MOST_CREDENTIALS:  # the others prove themselves
            self.macs.add(mac)

    def may_read(self, mac: str, now: float) -> bool:
        """Whether the origin was asked with this credential; it may show other bytes with a credential than without.

        ``now`` is in monotonic seconds, as for ``proved``.
        """
        return mac in self.macs or self._proofs.get(mac, 0.0) > now

    def refuse(self, mac: str) -> None:
        """The origin shows this credential something else."""
        self.macs.discard(mac)
        self._proofs.pop(mac, None)

    def proved(self, mac: str, now: float) -> None:
        """The origin said yes to this credential: it may read for ``PROOF_S`` seconds."""
        self._proofs = {known: until for known, until in self._proofs.items() if until > now}
        if len(self._proofs) >= MOST_CREDENTIALS:
            del self._proofs[next(iter(self._proofs))]
        self._proofs[mac] = now + PROOF_S
