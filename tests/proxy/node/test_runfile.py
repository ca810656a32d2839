"""Run files: found while their process lives, never trusted when somebody else could have written them; and whether two environments
lead to the same data."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_proxy.node.runfile import RunDirectory, RunFile, fingerprint, process_start_time, relevant
from forebay_proxy.wire.protocol.runfile import read_run_file


def own_record(**changes: object) -> RunFile:
    start = process_start_time(os.getpid())
    assert start is not None
    record = RunFile("http://127.0.0.1:7070", None, os.getpid(), start, "00112233aabbccdd", "/cache", "f" * 16, "serve")
    return replace(record, **changes)  # type: ignore[arg-type]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    return RunDirectory.of(os.environ)


def test_what_is_announced_is_found(directory: RunDirectory) -> None:
    """A live sidecar's record reads back as it was written."""
    with directory.claim("f" * 16) as claim:
        claim.announce(own_record())
        assert directory.live() == [own_record()]
    assert directory.live() == []


def test_the_training_side_reads_the_same_file(directory: RunDirectory) -> None:
    """wire/runfile.py, which workers use, finds what is announced here."""
    with directory.claim("f" * 16) as claim:
        claim.announce(own_record())
        assert read_run_file(os.environ) == asdict(own_record())


def test_a_dead_process_is_not_found(directory: RunDirectory) -> None:
    """A run file outlives kill -9; its sidecar does not. The same pid with another start time is another process."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    for record in (own_record(pid=process.pid), own_record(start_time=own_record().start_time - 1)):
        with directory.claim("f" * 16) as claim:
            claim.announce(record)
            assert directory.live() == []


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"url": 1}', json.dumps({**asdict(own_record(start_time=1)), "pid": -1}), "\xff" * 10]
)
def test_nonsense_is_ignored(directory: RunDirectory, text: str) -> None:
    """A half or foreign file is as good as none."""
    path = directory.path / "forebay.json"
    path.write_text(text)
    path.chmod(0o600)
    assert directory.live() == []


def test_fields_of_a_newer_version_are_ignored(directory: RunDirectory) -> None:
    """A record may say more than we know."""
    with directory.claim("f" * 16) as claim:
        claim.path.write_text(json.dumps({**asdict(own_record()), "novelty": 1}))
        claim.path.chmod(0o600)
        assert directory.live() == [own_record()]


def test_a_stale_file_is_replaced(directory: RunDirectory) -> None:
    """A run file whose owner died takes no name."""
    (directory.path / "forebay.json").write_text(json.dumps(asdict(own_record(pid=2**22 - 1))))
    with directory.claim("f" * 16) as claim:
        assert claim.path.name == "forebay.json"
        claim.announce(own_record())
        assert directory.live() == [own_record()]


def test_each_live_sidecar_has_a_name_of_its_own(directory: RunDirectory) -> None:
    """The first is forebay, the next carries its fingerprint, a third its pid too; all are found, the main one first."""
    with directory.claim("a" * 16) as first, directory.claim("b" * 16) as second, directory.claim("b" * 16) as third:
        assert [claim.path.stem for claim in (first, second, third)] == [
            "forebay",
            f"forebay-{'b' * 16}",
            f"forebay-{'b' * 16}-{os.getpid()}",
        ]
        assert len({claim.socket for claim in (first, second, third)}) == 3
        for number, claim in enumerate((third, second, first)):
            claim.announce(own_record(instance=str(number)))
        found = [record.instance for record in directory.live()]
        assert found[0] == "2"
        assert set(found) == {"0", "1", "2"}


def test_who_starts_waits_for_who_starts(directory: RunDirectory) -> None:
    """The starting lock lets one in at a time."""
    order: list[str] = []
    inside = threading.Event()

    def second() -> None:
        inside.wait()
        with directory.starting():
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with directory.starting():
        inside.set()
        thread.join(0.05)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def test_the_key_is_made_once(directory: RunDirectory) -> None:
    """Fingerprints of one directory are comparable, those of two are not."""
    environ = {"AWS_PROFILE": "x"}
    assert directory.fingerprint(environ) == RunDirectory.of(os.environ).fingerprint(environ)
    (directory.path / "forebay.key").unlink()
    before = directory.fingerprint(environ)
    (directory.path / "forebay.key").write_bytes(b"short")
    assert directory.fingerprint(environ) != before


def test_no_value_is_stored(directory: RunDirectory) -> None:
    """Nothing in the directory holds a credential."""
    directory.fingerprint({"AWS_SECRET_ACCESS_KEY": "hush-hush"})
    assert not any(b"hush" in path.read_bytes() for path in directory.path.iterdir())


def test_a_runtime_directory_that_is_gone_counts_as_unset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """XDG_RUNTIME_DIR of a login that ended cannot be made again; the directory in /tmp serves."""
    fallback = tmp_path / "fallback"
    monkeypatch.setattr("forebay_proxy.node.runfile.runtime_directory", lambda environ: environ.get("XDG_RUNTIME_DIR", str(fallback)))
    assert RunDirectory.of({"XDG_RUNTIME_DIR": str(tmp_path / "no" / "such")}).path == fallback


def test_the_log_before_is_kept(directory: RunDirectory) -> None:
    """A sidecar that died is asked about after the next one has started."""
    directory.new_log("forebay").write_text("first")
    directory.new_log("forebay").write_text("second")
    assert (directory.path / "forebay.log.1").read_text() == "first"


KEY = bytes(range(32))
ENVIRON = {"AWS_PROFILE": "train", "HF_TOKEN": "hf_x", "https_proxy": "http://proxy:3128", "PATH": "/bin"}


@pytest.mark.parametrize(
    "name", ["AWS_PROFILE", "AWS_ENDPOINT_URL_S3", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "HF_ENDPOINT", "https_proxy", "SSL_CERT_FILE"]
)
def test_what_decides_which_data_is_read_changes_it(name: str) -> None:
    """Another credential, endpoint, upstream proxy or trust store is another fingerprint."""
    assert fingerprint({**ENVIRON, name: "other"}, KEY) != fingerprint(ENVIRON, KEY)


@pytest.mark.parametrize("name", ["PATH", "HOME", "FOREBAY_URL", "GOPEN_REWRITE", "AWS_PAGER", "HF_HUB_DISABLE_PROGRESS_BARS"])
def test_what_does_not_leaves_it(name: str) -> None:
    """Variables that change no byte change no fingerprint."""
    assert fingerprint({**ENVIRON, name: "other"}, KEY) == fingerprint(ENVIRON, KEY)


def test_what_run_adds_for_its_command_leaves_it() -> None:
    """A run inside a run finds the same sidecar: loopback in NO_PROXY says nothing about origins."""
    inner = {**ENVIRON, "NO_PROXY": "127.0.0.1,localhost,::1", "no_proxy": "127.0.0.1,localhost,::1"}
    assert fingerprint(inner, KEY) == fingerprint(ENVIRON, KEY)
    assert fingerprint({**inner, "no_proxy": "127.0.0.1,.corp"}, KEY) != fingerprint(ENVIRON, KEY)


def test_proxy_names_are_case_blind_and_order_does_not_count() -> None:
    """HTTPS_PROXY is https_proxy, and a NO_PROXY list is a set."""
    assert relevant({"HTTPS_PROXY": "a"}) == relevant({"https_proxy": "a"})
    assert relevant({"HTTPS_PROXY": "a", "https_proxy": "b"}) == {"https_proxy": "b"}
    assert fingerprint({"no_proxy": "b, a"}, KEY) == fingerprint({"NO_PROXY": "a,b"}, KEY)


def test_empty_is_unset() -> None:
    """A variable set to nothing is no setting; bytes that are no text are one."""
    assert fingerprint({"AWS_PROFILE": ""}, KEY) == fingerprint({}, KEY) != fingerprint({"AWS_PROFILE": "\udcff"}, KEY)


def test_names_and_values_do_not_run_together() -> None:
    """Bytes cannot move from a name to its value or to the next variable."""
    assert fingerprint({"AWS_A": "B=AWS_C"}, KEY) != fingerprint({"AWS_A": "B", "AWS_C": ""}, KEY)
    assert fingerprint({"AWS_A": "xAWS_By"}, KEY) != fingerprint({"AWS_A": "x", "AWS_B": "y"}, KEY)


@given(
    st.dictionaries(st.sampled_from(["AWS_PROFILE", "AWS_REGION", "HF_TOKEN", "http_proxy"]), st.text(max_size=20)),
    st.binary(min_size=32, max_size=32),
)
def test_it_is_short_stable_and_shows_nothing(environ: dict[str, str], key: bytes) -> None:
    """16 hex digits, equal for equal input, and another key gives another one: nobody can try values against a stored fingerprint."""
    found = fingerprint(environ, key)
    assert len(found) == 16
    assert int(found, 16) >= 0
    assert found == fingerprint(dict(reversed(environ.items())), key)
    assert found != fingerprint(environ, bytes(32) if key != bytes(32) else KEY)
