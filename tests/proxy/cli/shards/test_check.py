"""The ways in that ``forebay check`` shows: what becomes of a URL or a command in each; the rest is in e2e/test_check.py."""

from __future__ import annotations

import pytest

from forebay_proxy.cli.run.env import ways_in

BASE = "http://127.0.0.1:7070"


def ways(text: str, **environ: str) -> tuple[str, str]:
    """By rewriting, and in code."""
    _, (_, by_env), (_, in_code) = ways_in(text, BASE, environ)
    return by_env, in_code


def test_headers_are_told_of() -> None:
    """None travels by rewriting; in code it does; the secret shows nowhere."""
    by_env, in_code = ways("pipe:curl -s -H 'Authorization: Bearer hush-hush' https://h.example/a.tar")
    assert "left to WebDataset" in by_env or "do not travel" in by_env
    assert "its headers travel" in in_code
    assert "hush" not in by_env + in_code


def test_what_a_secured_webdataset_refuses() -> None:
    """Rewriting ends every opening there; what is set in a program's code no environment shows, so that is told always."""
    by_env, in_code = ways("s3://b/a.tar")
    assert ("enforce_security" in by_env, "enforce_security" in in_code) == (True, False)
    by_env, in_code = ways("s3://b/a.tar", WDS_SECURE="1")
    assert "refused by WebDataset: WDS_SECURE" in by_env
    assert f"through Forebay: {BASE}/s3/b/a.tar" in in_code
    assert all("refused by WebDataset" in row for row in ways("pipe:aws s3 cp s3://b/a.tar -", WDS_SECURE="1"))


@pytest.mark.parametrize(("url", "words"), [
    ("pipe:ais get x -", "left to WebDataset"), ("/nas/a.tar", "left to WebDataset"), ("file:///nas/a.tar", "read directly, past Forebay"),
    ("s3:///a.tar", "refused"), ("pipe:cat /nas/a.tar", f"through Forebay: {BASE}/file/nas/a.tar; only below a --file-root"),
    ("s3://b/{0..3", "do not balance"), ("s3://b/{0..99999999}.tar", "more than"),
])  # fmt: skip
def test_what_is_said_of_the_way_in_code(url: str, words: str) -> None:
    """Unknown commands, bare paths, URLs and patterns that are wrong, and a NAS that goes through where a root covers it."""
    assert words in ways(url)[1]


@pytest.mark.parametrize(
    ("said", "path", "of"),
    [
        ("s3://b/k-{000..003}.tar", "/s3/b/k-000.tar", "the first of 4"),
        ("https://h.example/{a,b}/{0..1}.tar", "/https/h.example/a/0.tar", "the first of 4"),
        ("pipe:aws s3 cp s3://b/k-{000..003}.tar -", "/s3/b/k-000.tar", "the first of 4"),
        ("pipe:aws s3 cp s3://b/a.tar -", "/s3/b/a.tar", ""),
    ],
)
def test_a_pattern_goes_as_its_first(said: str, path: str, of: str) -> None:
    """WebDataset expands before it opens, and how many there are is said."""
    (_, head), *_ = ways_in(said, BASE, {})
    assert of in head
    assert all(f"through Forebay: {BASE}{path}" in row for row in ways(said))
