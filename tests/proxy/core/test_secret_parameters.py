"""What of a query proves who asks: a known signature in full company, or a parameter that is a secret by its name. All else names bytes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.core.secret_parameters import SECRETS, SIGNATURES, also_secret, cut
from forebay_proxy.core.shard import Shard
from forebay_proxy.wire.urls.shard_url import parse_origin_url

V4 = "algorithm=A&{0}credential=C%2Fs3&{0}date=20260101T000000Z&{0}expires=900&{0}signedheaders=host&{0}signature=S"
COMPLETE = {
    "aws 4": "X-Amz-Algorithm=A&X-Amz-Credential=C&X-Amz-Date=1&X-Amz-Expires=9&X-Amz-SignedHeaders=host&X-Amz-Signature=S",
    "aws 4 with a token": "X-Amz-Algorithm=A&X-Amz-Security-Token=T&X-Amz-Credential=C&X-Amz-Signature=S",
    "aws 4 in lower case": "x-amz-" + V4.format("x-amz-"),
    "aws 2": "AWSAccessKeyId=A&Signature=S&Expires=1",
    "cloudfront, canned": "Expires=1&Signature=S&Key-Pair-Id=K",
    "cloudfront, custom": "Policy=P&Signature=S&Key-Pair-Id=K",
    "google 4": "X-Goog-" + V4.format("X-Goog-"),
    "google 2": "GoogleAccessId=A&Expires=1&Signature=S",
    "google cdn": "Expires=1&KeyName=k&Signature=S",
    "azure": "sv=2022&sr=b&se=2030&sp=r&sig=S",
    "azure, stored policy": "sv=2022&si=p&sr=c&sig=S",
    "azure in upper case": "SV=2022&SIG=S",
    "oss 1": "OSSAccessKeyId=A&Expires=1&Signature=S&security-token=T",
    "oss 4": "x-oss-signature-version=OSS4&x-oss-credential=C&x-oss-date=1&x-oss-expires=9&x-oss-signature=S&x-oss-security-token=T",
    "cos": "q-sign-algorithm=sha1&q-ak=A&q-sign-time=1;2&q-key-time=1;2&q-header-list=&q-signature=S&x-cos-security-token=T",
    "obs": "AccessKeyId=A&Expires=1&Signature=S",
    "swift": "temp_url_sig=S&temp_url_expires=1",
    "swift, a folder": "temp_url_sig=S&temp_url_expires=2026-01-01T00:00:00Z&temp_url_prefix=train/&temp_url_ip_range=10.0.0.0/8",
    "ks3": "KSSAccessKeyId=A&Expires=1&Signature=S",
    "tos": "X-Tos-" + V4.format("X-Tos-"),
    "ucloud": "UCloudPublicKey=K&Expires=1&Signature=S",
    "bos with a token": "authorization=bce-auth-v1%2FA%2F2026%2F1800%2F%2FS&x-bce-security-token=T",
    "a name that is percent-encoded": "X%2DAmz-Credential=C&X-Amz%2dSignature=S",
}  # fmt: skip


@pytest.mark.parametrize("query", COMPLETE.values(), ids=COMPLETE)
def test_a_complete_signature_is_cut_off(query: str) -> None:
    """All of it, and nothing of it may choose the bytes; what stands around it stays, in its order."""
    assert cut(f"v=2&{query}&partNumber=1") == ("v=2&partNumber=1", query, "")


@pytest.mark.parametrize(
    "query",
    ["policy=train", "Policy=train", "signature=train", "Signature=train", "expires=train", "Expires=1", "x-goog-variant=train",
     "x-amz-split=a",
     "Expires=1&Signature=s", "Policy=p&Signature=s", "Key-Pair-Id=K&Signature=s", "Key-Pair-Id=K&Policy=p", "signature=s&expires=1&awsx=1",
     "expires=1&signature=s&key-pair-id=k", "sv=1&se=2&sp=r&st=3", "KeyName=k&Expires=1", "q-ak=A&q-sign-time=1",
     "X-Amz-Date=1&X-Amz-Expires=2", "x-oss-process=image", "key=train/0.tar", "code=7", "tokenizer=bpe", "mytoken=a", "token", "token=",
     "e=1", "exp=1", "e=1&exp=2", "x-bce-date=1", "ucloudpublickey", "accesskeys=1", "Expires=1&Signature=S&X-Plex=1",
     "st=1", "x-tos-process=video", "X-Goog-Expires=1"],
)  # fmt: skip
def test_words_without_their_company_name_bytes(query: str) -> None:
    """Half a signature, one in another case than its service's, and words that only look like a secret: all of it is the name."""
    assert cut(query) == (query, "", "")


@pytest.mark.parametrize(
    "query",
    ["token=S", "TOKEN=S", "access_token=S", "private_token=S", "api_key=S", "jwt=S", "auth=S", "Authorization=S", "hdnea=exp=1~hmac=S",
     "hdnts=S", "__token__=exp=1~hmac=S", "tempauth=S", "rlkey=S", "rlkey=S&st=1", "token=S&expires=1767225600&token_path=%2F", "sig=S",
     "X-Amz-Signature=S", "X-Amz-Security-Token=S", "X-Goog-Signature=S", "access%5Ftoken=S", "token=c2Vj==",
     "temp_url_sig=S", "authz=Bearer%20S", "delegation=S", "oauth_token=S",
     "e=1767225600&token=AK:S=", "jwt=S&exp=1767225600", "authorization=bce-auth-v1%2FA%2FS", "x-bce-security-token=T", "accesskey=S",
     "apitoken=S", "x-access-token=S", "subscription-key=S", "Ocp-Apim-Subscription-Key=S", "X-Plex-Token=S", "credential=S", "pwd=S",
     "UCloudPublicKey=K"],
)  # fmt: skip
def test_a_secret_by_its_name_is_cut_off_and_may_choose_the_bytes(query: str) -> None:
    """With what is issued anew together with it."""
    assert cut(f"dl=1&{query}&v=2") == ("dl=1&v=2", query, query)


@pytest.mark.parametrize("secret", ["token", "jwt", "bcdn_token"])
@pytest.mark.parametrize("word", ["e", "exp", "expire", "expires"])
@pytest.mark.parametrize("value", ["7", "train", "000019", "20260101", "17672256000.5", ""])
def test_an_ordinary_word_beside_a_secret_names_bytes_where_it_is_no_time(secret: str, word: str, value: str) -> None:
    """Two objects must not have one name: their server may give both the same ETag."""
    assert cut(f"{secret}=S&{word}={value}&v=1") == (f"{word}={value}&v=1", f"{secret}=S", f"{secret}=S")


@pytest.mark.parametrize(("query", "kept", "secret"), [
    ("v=1;token=S", "v=1", "token=S"), ("v=1;TOKEN=S;w=2&x=3", "v=1&x=3", "TOKEN=S;w=2"), ("token=S;v=1", "", "token=S;v=1"),
    ("auth=a=1;b=2&v=1", "v=1", "auth=a=1;b=2"), ("v=1;w=2;api%5Fkey=S", "v=1;w=2", "api%5Fkey=S"),
    ("x=1;sig=A&y=2;jwt=B", "x=1&y=2", "sig=A&jwt=B"), ("v=1;expires=1767225600;token=S", "v=1", "expires=1767225600;token=S"),
    ("v=1;token=;w=2", "v=1;token=;w=2", ""), ("v=1;tokens=2", "v=1;tokens=2", ""),
])  # fmt: skip
def test_a_secret_behind_a_semicolon_is_cut_off(query: str, kept: str, secret: str) -> None:
    """With what follows it before the next "&", which some servers take for a part of it; all of that may choose the bytes."""
    assert cut(query) == (kept, secret, secret)
    assert cut(kept) == (kept, "", "")


def test_a_signature_is_not_made_of_what_stands_behind_semicolons() -> None:
    """Most servers read one value there, which names bytes; what is a secret by its own name is one there too."""
    query = "v=1;Expires=3&KeyName=k&Signature=S"
    assert cut(query) == (query, "", "")
    assert cut("v=1;X-Amz-Credential=C;X-Amz-Signature=S") == ("v=1", *["X-Amz-Credential=C;X-Amz-Signature=S"] * 2)


def test_what_follows_of_a_version_stays_beside_a_signature() -> None:
    """A signature is what its service lists, not everything that begins as it does."""
    assert cut("X-Amz-Credential=C&X-Amz-Signature=S&x-amz-split=train") == (
        "x-amz-split=train",
        "X-Amz-Credential=C&X-Amz-Signature=S",
        "",
    )


@pytest.fixture
def configured() -> Iterator[None]:
    also_secret(["Key", "s", "e"])
    yield
    also_secret(())


@pytest.mark.usefixtures("configured")
def test_an_operator_names_more() -> None:
    """In any case; what is known by itself stays known."""
    assert cut("key=S&S=1&v=2&token=T&e=1") == ("v=2", *["key=S&S=1&token=T&e=1"] * 2)


WORDS = sorted({name for signature in SIGNATURES for name in signature.names} | set(SECRETS) | {"v", "id", "e", "exp", "st", ""})


@given(st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(["", "=", "=1", "=a=b"])), max_size=8))
def test_nothing_is_lost_or_doubled(pairs: list[tuple[str, str]]) -> None:
    """Every parameter is on one side, in its order; what may choose bytes is on the proving one; cutting twice cuts no more secrets."""
    parts = [name + value for name, value in pairs]
    kept, proof, choosing = (text.split("&") if text else [] for text in cut("&".join(parts)))
    assert sorted(filter(None, kept + proof)) == sorted(filter(None, parts))
    assert [part for part in proof if part in choosing][: len(choosing)] == choosing
    again, _, _ = cut("&".join(kept))
    assert again == "&".join(kept)


@given(st.lists(st.tuples(st.sampled_from(WORDS), st.sampled_from(["", "=", "=1", "=a=b"]), st.sampled_from("&;")), max_size=8))
def test_no_secret_is_left_behind_any_separator(pairs: list[tuple[str, str, str]]) -> None:
    """Whichever a server takes for one: what is kept has no parameter with the name of a secret and a value."""
    kept, _, _ = cut("".join(mark + name + value for name, value, mark in pairs)[1:])
    for part in kept.replace(";", "&").split("&"):
        name, _, value = part.partition("=")
        assert not (name in SECRETS and value)
    assert cut(kept)[0] == kept


@pytest.mark.parametrize("query", ["access_token=hunter2&v=1", "v=1;access_token=hunter2"])
def test_a_secret_is_no_part_of_a_shard(query: str) -> None:
    """Neither of its name nor of what is printed of it; the request keeps it."""
    shard = Shard.of(parse_origin_url(f"https://h/0.tar?{query}"))
    assert shard.name == "https://h/0.tar?v=1"
    assert "hunter2" not in repr(shard)
    assert (shard.credential.signature, shard.credential.choosing) == ("access_token=hunter2", "access_token=hunter2")
    assert shard.url.query == query
