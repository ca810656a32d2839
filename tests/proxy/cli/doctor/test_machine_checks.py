"""``forebay doctor``: the shell, the sidecar, its disk, an origin; each finding with a line to type."""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import moto
import pytest
from support.cli import invoke
from support.fake_sidecar import FakeSidecar
from support.scripted_answers import ramp
from support.scripted_origin import ScriptedOrigin, in_a_thread

from forebay_proxy.cli.doctor import machine_checks, origin_probe
from forebay_proxy.cli.doctor.machine_checks import environment_findings, origin_findings
from forebay_proxy.cli.doctor.origin_probe import OriginFacts
from forebay_proxy.cli.doctor.report import report
from forebay_proxy.cli.doctor.set_rules import Level
from forebay_proxy.core.segments import SEGMENT_BYTES
from forebay_proxy.core.shard import Pin, PinKind, Shard, Version
from forebay_proxy.wire.urls.shard_url import parse_origin_url

SECRET = "S3CRETVALUE"


@pytest.fixture
def sidecar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSidecar]:
    for name in (*os.environ,):
        if name.startswith(("FOREBAY_", "AWS_", "WDS_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    with FakeSidecar() as fake:
        cache = tmp_path / "disk" / "cache"
        cache.mkdir(parents=True)
        fake.status = {**fake.status, "cache_dir": str(cache)}
        monkeypatch.setenv("FOREBAY_URL", fake.url)
        yield fake


def test_nothing_to_mend(sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sidecar whose cache is as large as was asked; the disk, not memory, is tried beside the cache, and nothing stays."""
    calls, sync, advise = list[str](), os.fdatasync, os.posix_fadvise
    monkeypatch.setattr(os, "fdatasync", lambda fd: (calls.append("sync"), sync(fd)))
    monkeypatch.setattr(
        os, "posix_fadvise", lambda *how: (calls.append(f"forget {how[1:] == (0, 0, os.POSIX_FADV_DONTNEED)}"), advise(*how))
    )
    sidecar.status["cache"] |= {"capacity_bytes": 10**9, "effective_bytes": 10**9, "stored_bytes": 0}
    monkeypatch.setattr(machine_checks, "SLOW_DISK_BYTES_S", 0.0)  # others may use this one just now
    done = invoke("doctor")
    assert done.exit_code == 0
    assert re.search(r"ok +cache disk .*/disk \(\w+\) takes \S+ .B/s, written and synced, and gives \S+ .B/s, read back", done.stdout), (
        done.stdout
    )
    assert calls == ["sync", "forget True"]
    cache = Path(sidecar.status["cache_dir"])
    assert [*cache.parent.iterdir()] == [cache]


@pytest.mark.parametrize(
    ("environ", "level", "said"),
    [
        ({"http_proxy": f"http://u:{SECRET}@p:3128"}, Level.FAULT, "export NO_PROXY=127.0.0.1,localhost no_proxy=$NO_PROXY"),
        ({"http_proxy": "http://p:3128", "no_proxy": "localhost,127.0.0.1"}, Level.OK, "127.0.0.1 is spared"),
        ({"ALL_PROXY": "http://p:3128", "NO_PROXY": "x.org"}, Level.FAULT, "export NO_PROXY=x.org,127.0.0.1,localhost"),
        ({"WDS_CACHE": "/x"}, Level.ADVICE, "unset WDS_CACHE"),
        ({"WDS_SECURE": "1"}, Level.FAULT, "unset WDS_SECURE"),
        ({"FOREBAY_URL": "127.0.0.1:7070"}, Level.FAULT, "unset FOREBAY_URL"),
    ],
)
def test_traps_of_the_shell(environ: dict[str, str], level: Level, said: str) -> None:
    [found] = environment_findings(environ)
    assert found.level is level
    assert said in f"{found.text}; {found.next_step}"
    assert SECRET not in found.text


def test_what_the_sidecar_says(sidecar: FakeSidecar) -> None:
    """The verdict with its line to type; a cache that is smaller than was asked for; errors and troubles. What stands still is a fault."""
    shared = {"place": "s3://c/p/", "troubles": ["no answer within 1 s"]}
    verdict = {"severity": "act", "cause": "decode", "sentence": "training waited 62 %", "do": "more workers", "line": "num_workers=9"}
    error = {"error": "shard https://o/a.tar: 404", "at": 1.0, "what": "404", "job": "", "count": 1}
    sidecar.status |= {"verdict": verdict, "troubles": ["the disk is full"], "errors": 3, "recent_errors": [error], "shared": shared}
    done = invoke("doctor", "--json")
    found = {one["rule"]: one for one in json.loads(done.stdout)["findings"]}
    assert done.exit_code == 1
    assert (found["verdict"]["level"], found["verdict"]["next_step"]) == ("fault", "more workers; num_workers=9")
    assert "10.0 GB were asked for, and the disk has no more" in found["cache size"]["text"]
    assert found["trouble"]["text"] == "the disk is full"
    assert found["shared tier"]["text"] == "s3://c/p/: no answer within 1 s"
    assert found["errors"]["text"].endswith("the last: shard https://o/a.tar: 404")


@pytest.mark.parametrize("rates", [(99e6, 2e9), (2e9, 99e6)])
def test_a_poor_disk(rates: tuple[float, float], sidecar: FakeSidecar, monkeypatch: pytest.MonkeyPatch) -> None:
    """A network file system, and one that takes or gives less than a connection brings: two findings, each with the flag to use."""
    monkeypatch.setattr(machine_checks, "file_system_type", lambda *_: "nfs4")
    monkeypatch.setattr(machine_checks, "_tried_bytes_s", lambda _: rates)
    found = [one for one in json.loads(invoke("doctor", "--json").stdout)["findings"] if one["rule"] == "cache disk"]
    assert [(one["level"], "--cache-dir ON_A_" in one["next_step"]) for one in found] == [("advice", True)] * 2
    assert "network file system (nfs4)" in found[0]["text"]
    assert "99.0 MB/s" in found[1]["text"]


@pytest.mark.parametrize(("code", "step"), [(errno.ENOSPC, "make room there"), (errno.EACCES, "as its user")])
def test_a_disk_that_cannot_be_tried(sidecar: FakeSidecar, code: int, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full, or not ours: it is said, and nothing else is left out."""

    def failing(dir: Path, buffering: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(machine_checks.tempfile, "TemporaryFile", failing)
    found = {one["rule"]: one for one in json.loads(invoke("doctor", "--json").stdout)["findings"]}
    assert (found["cache disk"]["level"], os.strerror(code) in found["cache disk"]["text"]) == ("not known", True)
    assert step in found["cache disk"]["next_step"]


def test_no_sidecar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It says how to get one; what needs none is said all the same."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("FOREBAY_URL", raising=False)
    done = invoke("doctor")
    assert done.exit_code == 0
    assert "no sidecar runs on this node" in done.stdout


def test_an_origin(sidecar: FakeSidecar) -> None:
    """First byte, bytes a second alone and together, ranges, version, whose credentials, and what becomes of the URL."""
    with in_a_thread(ScriptedOrigin()) as origin:
        origin.put("/a.tar", ramp(3 * SEGMENT_BYTES), etag='"v1"')
        done = invoke("doctor", origin.url("/a.tar"), "--allow-origin", origin.base)
        asked = len(origin.seen("/a.tar"))
    assert re.search(rf"origin +{origin.base}: first byte after .*, \S+ .B/s over one connection, \S+ .B/s over eight", done.stdout)
    assert "ranges" in done.stdout
    assert "version      named by etag" in done.stdout
    assert "credentials  none: the URL and its headers carry none" in done.stdout
    assert 'eval "$(forebay env)"' in done.stdout
    assert asked == 10  # a HEAD for the clock, a segment, eight together


@pytest.fixture
def aws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the SDK's files; nothing else is looked for."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return tmp_path


def told_of(url: str) -> str:
    return origin_probe.credentials_of(Shard.of(parse_origin_url(url)), os.environ)


def test_it_says_as_whom_it_asks(aws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By STS where that answers; else the key's end, where it stands, and until when it holds."""
    (aws / "credentials").write_text(f"[lab]\naws_access_key_id = AKIA{SECRET}WXYZ\naws_secret_access_key = {SECRET}\n")
    with in_a_thread(ScriptedOrigin()) as origin:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", origin.base)
        assert told_of("s3://b/a.tar?profile=lab") == "AWS, key ****WXYZ from ~/.aws/credentials, profile lab, without an end"
        asked = len(origin.seen("/"))
        assert asked == 1
        assert "****WXYZ" in told_of(f"s3://b/a.tar?profile=lab&endpoint={origin.base}")
        assert len(origin.seen("/")) == asked  # a URL's endpoint is no reason to sign anything for it
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN"):
        monkeypatch.setenv(f"AWS_{name}", f"{SECRET}6789")
    monkeypatch.setenv("AWS_CREDENTIAL_EXPIRATION", "2099-01-02T03:04:00Z")
    with moto.mock_aws(config={"core": {"mock_credentials": False}}):
        said = told_of("s3://b/a.tar")
    assert re.fullmatch(r"AWS, as arn:aws:sts::\d{12}:\S+, key \*{4}6789 from the environment, until 2099-01-02 03:04 UTC", said), said
    assert SECRET not in said


def test_an_origin_that_is_no_good(sidecar: FakeSidecar) -> None:
    """No ranges, and no version: nothing of it can be kept."""
    with in_a_thread(ScriptedOrigin()) as origin:
        origin.put("/a.tar", ramp(1000), etag=None, ranges=False)
        done = invoke("doctor", origin.url("/a.tar"), "--allow-origin", origin.base, "--json")
        gone = invoke("doctor", origin.url("/gone.tar"), "--allow-origin", origin.base, "--json")
    found = {one["rule"]: one["level"] for one in json.loads(done.stdout)["findings"]}
    assert (found["ranges"], found["version"], done.exit_code) == ("advice", "fault", 1)
    assert json.loads(gone.stdout)["findings"][-1]["level"] == "fault"
    assert "404" in json.loads(gone.stdout)["findings"][-1]["text"]
    assert json.loads(gone.stdout)["findings"][-1]["next_step"] == f"curl -sSI '{origin.url('/gone.tar')}'"


FACTS = OriginFacts(Version('etag:"v"', Pin(PinKind.ETAG, '"v"'), 10), True, 0.01, 1e8, 4e8, 0.5)


@pytest.mark.parametrize(
    ("facts", "rule", "level", "said"),
    [
        (FACTS, "origin", Level.OK, "100 MB/s over one connection, 400 MB/s over eight"),
        (FACTS, "version", Level.OK, "named by etag"),
        (replace(FACTS, first_byte_s=0.6), "origin", Level.ADVICE, "forebay run"),
        (replace(FACTS, version=Version("modified:Mon", Pin(PinKind.MODIFIED, "Mon"), 10)), "version", Level.ADVICE, "send an ETag"),
        (replace(FACTS, skew_s=-61.0), "clock", Level.ADVICE, "this machine's is 1 min 1 s ahead of the origin's"),
        (replace(FACTS, skew_s=3600.0), "clock", Level.ADVICE, "behind the origin's; timedatectl set-ntp true"),
    ],
)
def test_what_an_origin_is_told_of(facts: OriginFacts, rule: str, level: Level, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each figure that is beyond its bound, and no other: a clock that is right has no row."""
    monkeypatch.setattr(origin_probe, "probed", lambda *_: facts)
    found = {one.rule: one for one in origin_findings(Shard.of(parse_origin_url("https://o/a.tar")), None, {})}
    assert (found[rule].level, said in f"{found[rule].text}; {found[rule].next_step}") == (level, True), found[rule]
    assert ("clock" in found) == (rule == "clock")


def test_ranks_and_workers_belong_together() -> None:
    done = invoke("doctor", "s3://b/{0..9}.tar", "--ranks", "8")
    assert done.exit_code == 2
    assert "--ranks and --workers belong together" in done.stderr


def test_a_report_holds_no_secret(sidecar: FakeSidecar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither of variables, nor of the log: proxies, keys and tokens are named, and no more."""
    log = tmp_path / "sidecar.log"
    log.write_text(f"begin\nforebay: shard https://o/a.tar?sig={SECRET}: slow\n")
    sidecar.status |= {"log": str(log)}
    planted = {
        "AWS_ACCESS_KEY_ID": f"{SECRET}WXYZ", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": SECRET,
        "HF_TOKEN": SECRET, "FOREBAY_TOKEN": SECRET,
        "https_proxy": f"http://u:{SECRET}@p:1", "MY_PASSWORD": SECRET, "FOREBAY_PASWORD": SECRET,
        "WDS_REWRITE": SECRET, "FOREBAY_GS_ENDPOINT": f"https://u:{SECRET}@h",
    }  # fmt: skip
    for name, value in planted.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("FOREBAY_GS_ENDPOINT")
    monkeypatch.setenv("FOREBAY_CACHE_SIZE", "10GB")
    file = tmp_path / "bug.json"
    with in_a_thread(ScriptedOrigin()) as origin:
        monkeypatch.setenv("AWS_ENDPOINT_URL", origin.base)
        done = invoke("doctor", "s3://b/a.tar", "--allow-origin", origin.base, "--report", str(file))
    assert "key ****WXYZ from the environment" in done.stdout
    text = file.read_text()
    assert SECRET not in text + done.stdout + done.stderr
    said = json.loads(text)
    assert said["variables"]["FOREBAY_CACHE_SIZE"] == "10GB"
    assert said["variables"]["HF_TOKEN"] == "(set)"
    assert "MY_PASSWORD" not in said["variables"]
    assert [line.split()[0] for line in said["log"]] == ["forebay:"]
    assert said["packages"]["aiohttp"] == importlib.metadata.version("aiohttp")
    assert {one["rule"] for one in said["findings"]} >= {"sidecar", "cache size", "cache disk"}
    assert said["status"]["pid"] == os.getpid()


def test_of_a_long_log_the_end_is_reported(sidecar: FakeSidecar, tmp_path: Path) -> None:
    """Whole lines of its last 64 KiB; of one that cannot be read the cause."""
    log = tmp_path / "sidecar.log"
    log.write_text("".join(f"line {number:06d}\n" for number in range(20_000)))
    sidecar.status |= {"log": str(log)}
    said = [json.loads(report([], {"log": str(path)}, {}))["log"] for path in (log, tmp_path)]
    assert (said[0][-1], 5000 < len(said[0]) <= (64 << 10) // 12) == ("line 019999", True)
    assert said[1] == [f"{tmp_path} cannot be read: Is a directory"]
