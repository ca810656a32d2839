"""The rules for GOPEN_REWRITE, as WebDataset itself applies them."""

from __future__ import annotations

import pytest

from forebay_proxy.wire.commands.gopen_rules import gopen_rewrite, rewritten, without_ours
from forebay_proxy.wire.commands.sources import parse_source
from forebay_proxy.wire.urls.shard_url import parse_proxy_target

BASE = "http://127.0.0.1:7070"
RULES = gopen_rewrite(BASE)


@pytest.mark.parametrize("text", [
    "s3://b/a/k.tar", "s3://b/k.tar?endpoint=http://h:9000&unsigned=1", "http://h:81/x%2Fy.tar?a=1&b=%20", "https://h/x.tar",
    "http://127.0.0.1:7071/x", "gs://b/k.tar", "hf://datasets/o/n@main/k.tar", "pipe:aws s3 cp s3://b/k.tar -",
    "pipe: aws s3 cp --quiet 's3://b/k.tar' - || true", "pipe:aws s3 cp s3://b/k.tar - 2>/dev/null | pv -ptrb || true ",
    "pipe:aws s3 cp --cli-read-timeout 300 s3://b/k.tar - --only-show-errors", "pipe:aws --endpoint-url http://h:9000 s3 cp s3://b/k.tar -",
    "pipe:aws s3 cp --endpoint-url=http://h:9000 s3://b/k.tar -", "pipe:aws s3 cp s3://b/k.tar - --endpoint-url http://h:9000",
    "pipe:aws s3 cp s3://b/k.tar - --no-sign-request",
    "pipe:aws --profile p s3 --region r cp --endpoint-url http://h s3://b/k.tar --request-payer requester - --no-sign-request",
    "pipe:s5cmd cat s3://b/k.tar", "pipe:s5cmd -r 5 --endpoint-url http://h:9000 --no-sign-request cat s3://b/k.tar",
    "pipe:s5cmd --profile p cat --concurrency 8 s3://b/k.tar", "pipe:s3cmd get s3://b/k.tar -",
    "pipe:s3cmd -q get --force s3://b/k.tar - || true", "pipe:gsutil -m cat gs://b/k.tar || true",
    "pipe:gcloud alpha storage cat gs://b/k.tar", "pipe:curl -s -L https://h/x.tar",
    "pipe:curl -fsSL --retry 3 --connect-timeout 30 'https://h/x.tar?a=1&b=2' || true",
    "pipe:curl -s -L https://h/x.tar?download=true -o -", "pipe:wget -q -O - --tries=0 https://h/x.tar", "pipe:wget https://h/x.tar -qO-",
    "pipe:gsutil cat gs://b/k.tar < /dev/null",
])  # fmt: skip
def test_taken(text: str) -> None:
    """Each form lands on the shard that the code reads in it; where options travel, the names of the others may come along empty."""
    source, result = parse_source(text), rewritten(RULES, text)
    assert source is not None
    assert result.startswith(BASE)
    assert parse_proxy_target(result[len(BASE) :]) == source.url


@pytest.mark.parametrize("text", [
    f"{BASE}/s3/b/k.tar", f"{BASE}", "http://localhost:7070/x", f"pipe:curl -s '{BASE}/x'", f"pipe:curl -s {BASE}", "/nas/x.tar",
    "file:///x", "https://user:pass@h/x", "https://h/x#y", "https://h/%zz", "https://h/a/../x", "s3://b/a/../k", "s3://b/%41", "s3://b/a b",
    "s3://b/a?b", "pipe:curl -u a:b https://h/x", "pipe:curl -H 'A: b' https://h/x", "pipe:curl https://h/x?a=1&b=2",
    "pipe:curl -k https://h/x", "pipe:curl 'https://h/x\"", "pipe:curl https://h/x | zcat", "pipe:aws s3 cp s3://b/k.tar",
    "pipe:aws s3 cp --recursive s3://b/k -", "pipe:aws s3 cp s3://b/k - --profile a --profile b", "pipe:aws s3 cp s3://b/k - > x",
    "pipe:AWS_PROFILE=p aws s3 cp s3://b/k -", "pipe:s5cmd cat s3://b/*", "pipe:gsutil cat gs://b/k#1", "pipe:cat x.tar", "pipe:cat /x",
    "pipe:curl https://h/x\ntrue", "pipe:aws s3 cp 's3://b/k -", "pipe:aws s3 cp s3://b/k' -", "pipe:aws s3 cp 's3://b/k\" -",
    "pipe:aws s3 cp s3://b/k -2>/dev/null", "pipe:s5cmd cat s3://b/k2>/dev/null",
])  # fmt: skip
def test_left_alone(text: str) -> None:
    """What a rule cannot carry keeps working as before; our own address is never sent round in a circle."""
    assert rewritten(RULES, text) == text


@pytest.mark.parametrize("base", ["", "127.0.0.1:7070", "http://h;x", "http://h=", "http://h/\\1", "http://h/x y"])
def test_a_base_that_no_rule_can_hold(base: str) -> None:
    """Is told, not quoted."""
    with pytest.raises(ValueError, match="plain URL"):
        gopen_rewrite(base)


@pytest.mark.parametrize(
    "text",
    [
        "pipe:curl " + "-s " * 3000 + "x", "pipe:aws " + "--quiet " * 1000, "s3://b/" + "/.a" * 3000 + "/..",
        "https://h/" + "a" * 8000 + " ", "https://" + "a" * 8000, "https://" + "a-" * 4000, "https://" + "a." * 4000,
    ],
)  # fmt: skip
def test_long_texts_take_no_time(text: str) -> None:
    """No rule backtracks itself to death (the test's own limit of time decides)."""
    assert rewritten(RULES, text) == text


@pytest.mark.webdataset
def test_webdataset_applies_them_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real ``rewrite_url`` gives what ours predicts."""
    gopen = pytest.importorskip("webdataset.gopen", reason="webdataset is not installed")
    rules = gopen_rewrite(BASE, "x-mine://=http://mirror/")
    monkeypatch.setenv("GOPEN_REWRITE", rules)
    for text in ("s3://b/k", "x-mine://k", "pipe:aws s3 cp s3://b/k - --endpoint-url=http://h:9000 || true",
    "pipe:curl -sL 'https://h/x?a&b'",
                 "/nas/x.tar", f"{BASE}/s3/b/k", "pipe:wget -qO- http://h/x", "gs://b/k"):  # fmt: skip
        assert gopen.rewrite_url(text) == rewritten(rules, text)


@pytest.mark.parametrize("keep", ["", "a=b", "a=b;c=d"])
def test_ours_can_be_taken_out_again(keep: str) -> None:
    """What a person had set is left, as it was; a value without any of ours is the value."""
    assert without_ours(gopen_rewrite(BASE, keep=keep)) == keep
    assert without_ours(keep) == keep
