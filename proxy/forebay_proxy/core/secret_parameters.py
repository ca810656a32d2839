"""Which parameters of an http(s) query prove who asks: the signatures of known services, and single parameters that are secrets. Pure.

A parameter is cut off a shard's name for one of two reasons.

- It belongs to a *signature* that is complete. Words such as ``Policy``, ``Expires`` or ``Signature`` mean something else elsewhere, and
  may name the bytes there, so they count in that company only. A signature signs the rest of the URL: two of them name the same bytes.
- It is a *secret* by its own name (``access_token``). It is kept off the disk and out of every list, but nothing says that it does not
  choose the bytes too, so another value is another *variant*: the origin is asked with it before anything stored is given out.

A few servers take ``;`` for ``&``, and most for a part of a value. A signature is looked for between ``&`` alone, since cutting one takes
for granted what it names; a secret behind a ``;`` is cut too, with the rest of the text up to the next ``&``, which may belong to it.

Letter case counts where the service says so. The table in docs/names.md is made of these lists (tests/security/test_parameters.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote_plus

__all__ = ["SECRETS", "SIGNATURES", "Signature", "also_secret", "cut"]


@dataclass(frozen=True, slots=True)
class Signature:
    """Complete as soon as all of one of ``needs`` are there; ``names`` are then cut, the needed ones among them. ``exact``: case counts."""

    service: str
    needs: tuple[frozenset[str], ...]
    names: frozenset[str]
    exact: bool = False

    def cuts(self, given: frozenset[str], lowered: frozenset[str]) -> frozenset[str]:
        """What of a query's parameter names ``given``, or of the same in lower case, belongs to it; nothing where it is not complete."""
        found = given if self.exact else lowered
        return self.names & found if any(need <= found for need in self.needs) else frozenset()


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _v4(service: str, prefix: str, also: str = "", proof: str = "algorithm credential") -> Signature:
    """One of those made like AWS's fourth: all of it begins with ``prefix``."""
    names = _words(f"algorithm credential date expires signedheaders signature {also}")
    needs = tuple(frozenset({f"{prefix}signature", f"{prefix}{word}"}) for word in proof.split())
    return Signature(service, needs, frozenset(prefix + name for name in names))


def _exact(service: str, needs: str, also: str = "") -> Signature:
    """One whose parameters have no prefix: as the service spells them, and all of them."""
    wanted = tuple(_words(way) for way in needs.split("|"))
    return Signature(service, wanted, _words(also).union(*wanted), exact=True)


_SAS = _words(  # all of what a shared access signature may consist of
    "sv sr st se sp sig spr sip si sdd ss srt skoid sktid skt ske sks skv saoid suoid scid ses rscc rscd rsce rscl rsct"
)
_COS = _words("q-sign-algorithm q-ak q-sign-time q-key-time q-header-list q-url-param-list q-signature x-cos-security-token")

SIGNATURES = (
    _v4("S3, signature 4", "x-amz-",
        "security-token content-sha256 s3session-token region-set user-agent checksum-mode"),
    _exact("S3, signature 2", "AWSAccessKeyId Signature Expires"),
    _exact("AWS CloudFront", "Key-Pair-Id Signature Policy|Key-Pair-Id Signature Expires", "Policy Expires Hash-Algorithm"),
    _v4("Google Cloud Storage, signature 4", "x-goog-"),
    _exact("Google Cloud Storage, signature 2", "GoogleAccessId Signature Expires"),
    _exact("Google Cloud and Media CDN", "KeyName Signature Expires", "URLPrefix"),
    Signature("Azure, shared access signature", (_words("sv sig"),), _SAS),
    _exact("Alibaba OSS, signature 1", "OSSAccessKeyId Signature Expires", "security-token"),
    _v4("Alibaba OSS, signature 4", "x-oss-", "signature-version additional-headers security-token", "signature-version credential"),
    Signature("Tencent COS", (_words("q-signature q-ak"),), _COS),
    _exact("Huawei OBS", "AccessKeyId Signature Expires"),
    Signature("Swift and Ceph, temporary URL", (_words("temp_url_sig temp_url_expires"),),
              _words("temp_url_sig temp_url_expires temp_url_prefix temp_url_ip_range")),
    _exact("Kingsoft KS3", "KSSAccessKeyId Signature Expires"),
    _v4("Volcengine TOS", "x-tos-", "security-token signedqueries policy content-sha256"),
    _exact("UCloud US3", "UCloudPublicKey Signature Expires"),
    Signature("Baidu BOS, temporary keys", (_words("authorization x-bce-security-token"),),
              _words("authorization x-bce-security-token x-bce-date")),
)  # fmt: skip

# In lower case, and so compared: whoever writes them. Parameters of incomplete signatures are among them. Not here, as
# they are ordinary words that name bytes somewhere: key, code, sign, verify, signature, policy, expires.
SECRETS = _words(
    """
    access_token accesstoken access-token token auth_token auth-token private_token private-token job_token id_token refresh_token
    session_token sessiontoken bearer bearer_token jwt auth authorization auth_key auth_info authkey api_key apikey api-key api_token
    apitoken api-token x-api-key x-auth-token x-access-token x-plex-token subscription-key ocp-apim-subscription-key accesskey access_key
    access-key credential client_secret secret secret_key password passwd pwd passphrase
    sig x-amz-signature x-amz-security-token x-amz-credential x-goog-signature x-goog-credential x-oss-signature x-oss-security-token
    x-oss-credential x-tos-signature x-tos-security-token x-tos-credential x-obs-security-token x-cos-security-token x-bce-security-token
    q-signature
    security-token awsaccesskeyid ossaccesskeyid googleaccessid ucloudpublickey
    temp_url_sig kssaccesskeyid oauth_token oauth_signature authz delegation
    bcdn_token hdnea hdnts hdntl __token__ __gda__ edge-cache-token rlkey tempauth resourcekey _upt
    """
)
# They come with a secret, and anew with each issue of it: Bunny, KeyCDN and Qiniu (e), a JWT's end, Dropbox. Ordinary words, so in that
# company only, and ``_TIMES`` only where they are one: ``?token=…&e=7`` and ``&e=8`` may be two objects, and servers that make ETags of
# date and size give two files the same. They are no signature, of which two would name the same bytes: they may choose them too.
_COMPANIONS = {
    "token": _words("e expires expire token_path token_countries token_countries_blocked"),
    "jwt": _words("exp"),
    "bcdn_token": _words("expires token_path token_countries token_countries_blocked"),
    "rlkey": _words("st"),
}
_TIMES = _words("e exp expire expires")
_TIME = re.compile(r"[0-9]{9,}")  # Unix time, in seconds or finer

_also: frozenset[str] = frozenset()


def also_secret(names: Iterable[str]) -> None:
    """What this process takes for a secret beside ``SECRETS`` (``--secret-param``); said at the start, before any shard has a name.

    For the whole process, since a name must be the same at every door: a list that is handed around is forgotten at one of them.
    """
    global _also  # noqa: PLW0603
    _also = frozenset(name.lower() for name in names)


def cut(query: str) -> tuple[str, str, str]:
    """(the parameters that name the bytes, the secrets, the secrets that may choose bytes too); order and bytes of each as received."""
    if not query:
        return "", "", ""
    parts = query.split("&")
    names = [_name(part) for part in parts]
    given = frozenset(names)
    lowered = frozenset(name.lower() for name in names)
    exact: frozenset[str] = frozenset()
    folded: frozenset[str] = frozenset()
    for signature in SIGNATURES:
        found = signature.cuts(given, lowered)
        if signature.exact:
            exact |= found
        else:
            folded |= found
    signing = frozenset(name for name in given if name in exact or name.lower() in folded)
    return _shares(parts, names, signing, _secrets_of(lowered.union(*(_inner_names(part) for part in parts))))


def _secrets_of(lowered: frozenset[str]) -> frozenset[str]:
    secrets = (SECRETS | _also) & lowered
    return secrets.union(*(_COMPANIONS.get(secret, ()) for secret in secrets))


def _shares(parts: list[str], names: list[str], signing: frozenset[str], secrets: frozenset[str]) -> tuple[str, str, str]:
    """``cut``'s answer for ``parts`` with these ``names``; ``signing`` names belong to a signature."""
    kept: list[str] = []
    proof: list[str] = []
    choosing: list[str] = []
    for part, name in zip(parts, names, strict=True):
        if name in signing:
            proof.append(part)
            continue
        before, secret = _split(part, secrets)
        if before or not secret:
            kept.append(before)
        if secret:
            proof.append(secret)
            choosing.append(secret)
    return "&".join(kept), "&".join(proof), "&".join(choosing)


def _split(part: str, secrets: frozenset[str]) -> tuple[str, str]:
    """(the part that is kept, the secret): parted at the first ``;`` that has a secret behind it, which belongs to neither."""
    pieces = part.split(";")
    for number, piece in enumerate(pieces):
        name, value = _name(piece).lower(), piece.partition("=")[2]
        if name in secrets and value and (name not in _TIMES or name in _also or _TIME.fullmatch(value)):
            return ";".join(pieces[:number]), ";".join(pieces[number:])
    return part, ""


def _inner_names(part: str) -> frozenset[str]:
    """Those behind a ``;``, in lower case."""
    return frozenset(_name(piece).lower() for piece in part.split(";")[1:]) if ";" in part else frozenset()


def _name(part: str) -> str:
    """The name as an origin reads it."""
    name = part.partition("=")[0]
    return unquote_plus(name) if "%" in name or "+" in name else name
