"""The rules for GOPEN_REWRITE, as WebDataset itself applies them."""

from __future__ import annotations

import re

import pytest

from forebay_proxy.wire.commands.gopen_rules import gopen_rewrite, rewritten, without_ours
from forebay_proxy.wire.urls.shard_url import parse_proxy_target

BASE = "http://127.0.0.1:7070"
RULES = gopen_rewrite(BASE)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("s3://b/a/k.tar", "/s3/b/a/k.tar"),
        ("s3://b/k.tar?endpoint=http://h:9000&unsigned=1", "/s3/b/k.tar?endpoint=http://h:9000&unsigned=1"),
        ("http://h:81/x%2Fy.tar?a=1&b=%20", "/http/h:81/x%2Fy.tar?a=1&b=%20"),
        ("https://h/x.tar", "/https/h/x.tar"),
        ("http://127.0.0.1:7071/x", "/http/127.0.0.1:7071/x"),
        ("gs://b/k.tar", "/gs/b/k.tar"),
        ("hf://datasets/o/n@main/k.tar", "/hf/datasets/o/n@main/k.tar"),
        ("pipe:aws s3 cp s3://b/k.tar -", "/s3/b/k.tar"),
        ("pipe: aws s3 cp --quiet 's3://b/k.tar' - || true", "/s3/b/k.tar"),
        ("pipe:aws s3 cp s3://b/k.tar - 2>/dev/null | pv -ptrb || true ", "/s3/b/k.tar"),
        ("pipe:aws s3 cp --cli-read-timeout 300 s3://b/k.tar - --only-show-errors", "/s3/b/k.tar"),
        ("pipe:aws --endpoint-url http://h:9000 s3 cp s3://b/k.tar -", "/s3/b/k.tar?endpoint=http://h:9000"),
        ("pipe:aws s3 cp --endpoint-url=http://h:9000 s3://b/k.tar -", "/s3/b/k.tar?endpoint=http://h:9000"),
        ("pipe:aws s3 cp s3://b/k.tar - --endpoint-url http://h:9000", "/s3/b/k.tar?endpoint=http://h:9000"),
        ("pipe:aws s3 cp s3://b/k.tar - --no-sign-request", "/s3/b/k.tar?unsigned=1"),
        ("pipe:aws --profile p s3 --region r cp --endpoint-url http://h s3://b/k.tar --request-payer requester - --no-sign-request",
         "/s3/b/k.tar?endpoint=http://h&profile=p&region=r&unsigned=1&requester_pays=1"),
        ("pipe:s5cmd cat s3://b/k.tar", "/s3/b/k.tar"),
        ("pipe:s5cmd -r 5 --endpoint-url http://h:9000 --no-sign-request cat s3://b/k.tar",
        "/s3/b/k.tar?endpoint=http://h:9000&unsigned=1"),
        ("pipe:s5cmd --profile p cat --concurrency 8 s3://b/k.tar", "/s3/b/k.tar?profile=p"),
        ("pipe:s3cmd get s3://b/k.tar -", "/s3/b/k.tar"),
        ("pipe:s3cmd -q get --force s3://b/k.tar - || true", "/s3/b/k.tar"),
        ("pipe:gsutil -m cat gs://b/k.tar || true", "/gs/b/k.tar"),
        ("pipe:gcloud alpha storage cat gs://b/k.tar", "/gs/b/k.tar"),
        ("pipe:curl -s -L https://h/x.tar", "/https/h/x.tar"),
        ("pipe:curl -fsSL --retry 3 --connect-timeout 30 'https://h/x.tar?a=1&b=2' || true", "/https/h/x.tar?a=1&b=2"),
        ("pipe:curl -s -L https://h/x.tar?download=true -o -", "/https/h/x.tar?download=true"),
        ("pipe:wget -q -O - --tries=0 https://h/x.tar", "/https/h/x.tar"),
        ("pipe:wget https://h/x.tar -qO-", "/https/h/x.tar"),
        ("pipe:gsutil cat gs://b/k.tar < /dev/null", "/gs/b/k.tar"),
    ],
)  # fmt: skip
def test_taken(text: str, target: str) -> None:
    """Each form lands on the shard it names; where options travel, the names of the others may come along empty."""
    result = rewritten(RULES, text)
    assert result.startswith(BASE)
    assert parse_proxy_target(result[len(BASE) :]) == parse_proxy_target(target)


@pytest.mark.parametrize(
    "text",
    [
        f"{BASE}/s3/b/k.tar", f"{BASE}", "http://localhost:7070/x", f"pipe:curl -s '{BASE}/x'", f"pipe:curl -s {BASE}", "/nas/x.tar",
        "file:///x",
        "https://user:pass@h/x", "https://h/x#y", "https://h/%zz", "https://h/a/../x", "s3://b/a/../k", "s3://b/%41", "s3://b/a b",
        "s3://b/a?b",
        "pipe:curl -u a:b https://h/x", "pipe:curl -H 'A: b' https://h/x", "pipe:curl https://h/x?a=1&b=2", "pipe:curl -k https://h/x",
        "pipe:curl 'https://h/x\"", "pipe:curl https://h/x | zcat", "pipe:aws s3 cp s3://b/k.tar", "pipe:aws s3 cp --recursive s3://b/k -",
        "pipe:aws s3 cp s3://b/k - --profile a --profile b", "pipe:aws s3 cp s3://b/k - > x", "pipe:AWS_PROFILE=p aws s3 cp s3://b/k -",
        "pipe:s5cmd cat s3://b/*", "pipe:gsutil cat gs://b/k#1", "pipe:cat x.tar", "pipe:cat /x",
        "pipe:curl https://h/x\ntrue", "pipe:aws s3 cp 's3://b/k -", "pipe:aws s3 cp s3://b/k' -", "pipe:aws s3 cp 's3://b/k\" -",
        "pipe:aws s3 cp s3://b/k -2>/dev/null", "pipe:s5cmd cat s3://b/k2>/dev/null",
    ],
)  # fmt: skip
def test_left_alone(text: str) -> None:
    """What a rule cannot carry keeps working as before; our own address is never sent round in a circle."""
    assert rewritten(RULES, text) == text


def test_a_rule_set_found_stays_in_front() -> None:
    """An operator's own mirror wins."""
    rules = gopen_rewrite(BASE, "s3://=http://mirror/;")
    assert rules.startswith("s3://=http://mirror/;")
    assert rewritten(rules, "s3://b/k") == "http://mirror/b/k"


def test_a_second_eval_replaces_the_first() -> None:
    """Our rules for a sidecar that is gone do not stay in front of those for the new one."""
    first = gopen_rewrite("http://127.0.0.1:1", "a=b")
    assert gopen_rewrite(BASE, first) == gopen_rewrite(BASE, "a=b")


def test_keys_hold_nothing_that_splits_them() -> None:
    """Every rule is one key, one ``=``, one target, and a regex that compiles; the value fits an environment many times over."""
    rules = [rule.split("=", 1) for rule in RULES.split(";")]
    assert all(len(rule) == 2 and rule[1].startswith(BASE + "/") for rule in rules)
    assert all(re.compile("^" + key) for key, _ in rules)
    assert len(RULES) < 20_000


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
