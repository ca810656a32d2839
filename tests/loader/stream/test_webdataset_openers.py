"""Taking over webdataset's openers, and giving them back."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.fake_proxy import FakeServer, Refuse, ramp

import forebay_loader as fb
from forebay_loader.stream.webdataset_openers import gopen_module, source_of
from forebay_proxy.wire.commands import gopen_rules as rules
from forebay_proxy.wire.urls.shard_url import parse_origin_url

wds = pytest.importorskip("webdataset")

pytestmark = pytest.mark.webdataset

BODY = ramp(50_000)
QUICK = fb.Limits(resume_s=0.2, open_s=0.05, pause_s=0.01, jitter_s=0.0)


def gopen(url: str, mode: str = "rb") -> Any:
    return wds.gopen(url, mode)


def schemes() -> dict[str, Any]:
    return gopen_module().gopen_schemes


@pytest.fixture
def stock(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What webdataset's own pipe opener is asked for; it answers BODY and runs nothing."""
    asked: list[str] = []

    def gopen_pipe(url: str, mode: str = "rb", bufsize: int = 8192) -> io.BytesIO:
        asked.append(url)
        return io.BytesIO(BODY)

    gopen_pipe.__module__ = "webdataset.gopen"
    monkeypatch.setitem(schemes(), "pipe", gopen_pipe)
    return asked


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("s3://bucket/a.tar", "s3://bucket/a.tar"),
        ("pipe:aws s3 cp s3://bucket/a.tar -", "s3://bucket/a.tar"),
        ("pipe: aws s3 cp --endpoint-url http://e:9000 s3://bucket/a.tar - ", "s3://bucket/a.tar?endpoint=http://e:9000"),
        ("pipe:s5cmd cat s3://bucket/a.tar || true", "s3://bucket/a.tar"),
        ("https://host.example/a.tar", "https://host.example/a.tar"),
        ("pipe:curl -s -L https://host.example/a.tar", "https://host.example/a.tar"),
        ("gs://bucket/a.tar", "gs://bucket/a.tar"),
        ("pipe:gsutil -q cat gs://bucket/a.tar", "gs://bucket/a.tar"),
        ("pipe:gcloud storage cat gs://bucket/a.tar", "gs://bucket/a.tar"),
        ("hf://datasets/org/name@main/a.tar", "hf://datasets/org/name@main/a.tar"),
    ],
)
def test_reading_goes_through_the_sidecar(proxy: FakeServer, url: str, origin: str) -> None:
    """What webdataset is asked to open for reading comes from the sidecar, without a process."""
    proxy.put(parse_origin_url(origin).proxy_path(), BODY)
    fb.enable(limits=QUICK)
    with gopen(url) as stream:
        assert stream.read() == BODY
    assert fb.counters()["opened"] == 1


def test_disable_restores(proxy: FakeServer) -> None:
    """disable() leaves webdataset exactly as it was; enabling twice is enabling once."""
    before, rewrite = dict(schemes()), gopen_module().rewrite_url
    fb.enable()
    fb.enable()
    assert schemes()["http"] is not before["http"]
    fb.disable()
    fb.disable()
    assert dict(schemes()) == before
    assert gopen_module().rewrite_url is rewrite


def test_unknown_command_is_left_alone(proxy: FakeServer, stock: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """A command we do not know goes to webdataset, with one notice that names the command and nothing else of it."""
    fb.enable()
    for number in range(3):
        assert gopen(f"pipe:mytool --token secret-{number} x").read() == BODY
    assert len(stock) == 3
    assert proxy.requests == []
    (notice,) = caplog.records
    assert "mytool" in notice.getMessage()
    assert "secret" not in notice.getMessage()


@pytest.mark.parametrize("status", [401, 403])
def test_gsutil_may_be_logged_in_where_the_sidecar_is_not(proxy: FakeServer, stock: list[str], status: int) -> None:
    """Google's refusal leaves gs shards to webdataset's own way, from then on; any other origin's refusal stands."""
    proxy.fault("/gs/bucket/a.tar", Refuse(status))
    proxy.fault("/s3/bucket/a.tar", Refuse(status))
    fb.enable(limits=QUICK)
    for _ in range(2):
        assert gopen("pipe:gsutil cat gs://bucket/a.tar").read() == BODY
    assert stock == ["pipe:gsutil cat gs://bucket/a.tar"] * 2
    assert len(proxy.requests) == 1
    with pytest.raises(fb.ShardReadError):
        gopen("s3://bucket/a.tar")


@pytest.mark.parametrize("late", [False, True])
def test_a_users_opener_stays(proxy: FakeServer, late: bool) -> None:
    """An opener that a user registered, before or after, is used; disable() does not remove it."""

    def mine(url: str, mode: str = "rb", bufsize: int = 8192) -> io.BytesIO:
        return io.BytesIO(b"mine")

    if late:
        fb.enable()
    schemes()["s3"] = mine
    try:
        fb.enable()
        assert gopen("s3://bucket/a.tar").read() == b"mine"
        assert source_of("s3://bucket/a.tar") is None
        fb.disable()
        assert schemes()["s3"] is mine
    finally:
        del schemes()["s3"]


def test_a_users_default_opener_stays(proxy: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A default opener of a user's serves s3 as before."""
    monkeypatch.setitem(schemes(), "__default__", lambda url, mode, bufsize: io.BytesIO(b"mine"))
    fb.enable()
    assert gopen("s3://bucket/a.tar").read() == b"mine"


def test_the_real_rules_are_inert(proxy: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """So are the very rules that `forebay run` exports, and they keep a user's rule in front working."""
    proxy.put("/s3/bucket/a.tar", BODY)
    proxy.put("/https/new.example/a.tar", BODY)
    monkeypatch.setenv("GOPEN_REWRITE", rules.gopen_rewrite(proxy.url, keep="https://old.example=https://new.example"))
    fb.enable(limits=QUICK)
    for url in ("pipe:aws s3 cp s3://bucket/a.tar -", "https://old.example/a.tar"):
        with gopen(url) as stream:
            assert stream.read() == BODY
    assert all(request.headers["Forebay-Reader"] for request in proxy.requests)


def test_a_proxy_url_is_opened_by_us(proxy: FakeServer) -> None:
    """A URL that already leads to the sidecar is opened as the shard it names."""
    proxy.put("/s3/bucket/a.tar", BODY)
    fb.enable(limits=QUICK)
    with gopen(f"{proxy.url}/s3/bucket/a.tar") as stream:
        assert stream.read() == BODY
    assert proxy.requests[0].headers["Forebay-Reader"]


def test_refused_files_are_left_from_then_on(proxy: FakeServer, stock: list[str]) -> None:
    """A sidecar without a root for files is asked once; then `cat` is webdataset's again."""
    fb.enable(limits=QUICK)
    proxy.fault("/file/nas/a.tar", *[Refuse(403, "outside")] * 3)
    for _ in range(3):
        assert gopen("pipe:cat /nas/a.tar").read() == BODY
    assert len(proxy.requests) == 1
    assert source_of("pipe:cat /nas/a.tar") is None


def test_secure_mode_is_respected(proxy: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where webdataset was told to refuse commands, it still does."""
    utils = sys.modules["webdataset.utils"]
    if not hasattr(utils, "enforce_security"):
        pytest.skip("webdataset 0.2.86 knows no such mode")
    monkeypatch.setattr(utils, "enforce_security", True)
    fb.enable()
    with pytest.raises(ValueError, match="unsafe_gopen"):
        gopen("pipe:cat /nas/a.tar")
    assert proxy.requests == []


def test_import_is_light() -> None:
    """Importing the package imports neither torch nor webdataset; nor does naming fb.video, or PyAV."""
    code = (
        "import sys, forebay_loader; forebay_loader.video; assert not {'av', 'torch', 'webdataset', 'numpy', 'aiohttp'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240, env={"PYTHONPATH": ":".join(sys.path)})


def test_children_enable_on_import(proxy: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """enable(export=True) makes child processes enable when they import the package."""
    fb.enable(export=True)
    assert os.environ["FOREBAY_ENABLE"] == "1"
    code = (
        "import sys; sys.modules['torch'] = None\n"  # webdataset imports it, in seconds, where it is there
        "import forebay_loader, webdataset; assert webdataset.gopen_schemes['s3'].__module__ == 'forebay_loader.stream.webdataset_openers'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=240, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})


def test_an_opener_that_was_put_back_leads_to_webdatasets(tmp_path: Path) -> None:
    """A script that sets its own opener for a while and then restores what it found, which was ours: reading and writing go on."""
    fb.enable()
    kept = schemes()["pipe"]
    fb.disable()
    stock = schemes()["pipe"]
    schemes()["pipe"] = kept
    try:
        with gopen(f"pipe:cat > {tmp_path}/a", "wb") as stream:
            stream.write(b"x")
    finally:
        schemes()["pipe"] = stock
    assert (tmp_path / "a").read_bytes() == b"x"
