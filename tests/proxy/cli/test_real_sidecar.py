"""The verbs against the real sidecar: started by run, used, kept while needed, gone afterwards."""

from __future__ import annotations

import functools
import http.server
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.cli import environment
from support.tarmaking import hand_header
from support.verbs import verb, verb_process

from forebay_proxy.node.runfile import RunDirectory, process_start_time

pytestmark = pytest.mark.another_python

READ = "import os, sys, urllib.request as r; sys.stdout.buffer.write(r.urlopen(os.environ['FOREBAY_URL'] + sys.argv[1]).read())"


class Place:
    """A user of their own: run directory, cache directory, and an origin with one shard of 3 MB."""

    def __init__(self, path: Path, port: int, data: bytes) -> None:
        self.path, self.data = path, data
        self._ended = ExitStack()
        self.shard = f"http://127.0.0.1:{port}/a.tar"
        self.proxy_path = f"/http/127.0.0.1:{port}/a.tar"
        (path / "run").mkdir(mode=0o700)
        settings = {
            "FOREBAY_ALLOW_ORIGIN": f"http://127.0.0.1:{port}", "FOREBAY_CACHE_DIR": str(path / "cache"), "FOREBAY_CACHE_SIZE": "200MB",
            "FOREBAY_PORT": "0", "HOME": str(path),
        }  # fmt: skip
        self.environ = environment(path / "run", **settings)
        self.directory = RunDirectory(path / "run")

    def forebay(self, *arguments: str, real: bool = False, **variables: str) -> subprocess.CompletedProcess[bytes]:
        """The verb; what it starts as a sidecar is a program of its own in any case."""
        return verb({**self.environ, **variables}, *arguments, real=real)

    def begin(self, *flags: str) -> None:
        """A sidecar as ``run`` would have started it, where who started it is not what is tested."""
        serving = verb_process(self.environ, "serve", "--json", "--idle-exit-s", "30", *flags)
        assert serving.stdout is not None
        assert serving.stdout.readline()
        self._ended.callback(serving.communicate)  # its fixture ends whatever lives here

    def collect(self) -> None:
        self._ended.close()

    def wait_until_gone(self, pid: int, start: int) -> None:
        while process_start_time(pid) == start:
            time.sleep(0.02)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "www").mkdir()
    data = hand_header(b"a.bin", 2_998_464) + os.urandom(3_000_000 - 512)
    (tmp_path / "www" / "a.tar").write_bytes(data)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=tmp_path / "www")) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        place = Place(tmp_path, server.server_address[1], data)
        yield place
        living = place.directory.live()
        for record in living:
            os.kill(record.pid, signal.SIGTERM)
        place.collect()
        for record in living:
            place.wait_until_gone(record.pid, record.start_time)
        server.shutdown()
        thread.join()


@pytest.mark.each_python
def test_status_ls_warm_and_evict_agree(place: Place) -> None:
    """What one verb does the others see."""
    place.begin()
    warm = place.forebay("warm", place.shard)
    assert (warm.returncode, warm.stdout) == (0, b"1 shard stored, 0 already here, 0 without room, 0 failed; 3.0 MB\n"), warm.stderr
    (shard,) = json.loads(place.forebay("ls", "--json").stdout)["shards"]
    assert (shard["shard"], shard["complete"], shard["length_bytes"]) == (place.shard, True, 3_000_000)
    assert json.loads(place.forebay("status", "--json").stdout)["cache"]["shards"] == 1
    assert b"1 shard in" in place.forebay("status").stdout
    while b"1 shard being read" in (gone := place.forebay("evict", place.shard)).stderr:  # its samples are counted just now
        time.sleep(0.2)
    assert gone.stdout == b"1 shard evicted, 3.0 MB freed\n", gone.stderr
    assert place.forebay("ls").stdout == b""


@pytest.mark.each_python
def test_it_lives_while_a_run_holds_it_and_no_longer(place: Place) -> None:
    """An idle time shorter than the command: the held connection keeps it, and its end lets it go."""
    held = ("run", "--quiet", "--idle-exit-s", "1", "--", "sh", "-c", "echo up; read line")
    with verb_process(place.environ, *held, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (record,) = place.directory.live()
        time.sleep(3)
        assert place.directory.live() == [record]
        process.communicate(b"\n")
    place.wait_until_gone(record.pid, record.start_time)
    assert place.directory.live() == []
    assert not Path(str(record.socket)).exists()


def test_a_run_that_joins_says_what_has_no_effect(place: Place) -> None:
    """Flags, variables: what differs is named with both values, once; with --required the command does not run.

    How long it stays idle is its starter's business.
    """
    place.begin()
    asked = ("run", "--cache-size", "1TB", "--port", "9999", "--idle-exit-s", "5")
    joined = place.forebay(*asked, "--", "echo", "ran", FOREBAY_REVALIDATE="never")
    told = b"runs with other settings, and they count: --port 0, not 9999; --cache-size 200 MB, not 1.0 TB; --revalidate job, not never"
    assert told in joined.stderr
    assert b"'forebay stop' ends it" in joined.stderr
    assert joined.stdout == b"ran\n"
    refused = place.forebay(*asked, "--required", "--", "echo", "ran")
    assert (refused.returncode, refused.stdout) == (2, b"")
    same = place.forebay("run", "--", "true")
    assert b"other settings" not in same.stderr


def test_origins_are_handed_over_to_the_one_that_runs(place: Place) -> None:
    """A user's own --allow-origin is worth as much later as at the start; its status has it."""
    origin = place.environ.pop("FOREBAY_ALLOW_ORIGIN")
    place.begin()
    refused = place.forebay("run", "--", sys.executable, "-c", READ, place.proxy_path)
    assert refused.returncode != 0
    read = place.forebay("run", "--allow-origin", origin, "--", sys.executable, "-c", READ, place.proxy_path)
    assert read.stdout == place.data
    assert origin in json.loads(place.forebay("status", "--json").stdout)["settings"]["allow_origin"]["value"]


def test_strict_origins_are_handed_nothing(place: Place) -> None:
    """Their list is closed when the sidecar starts; the run goes on with the sidecar as it is, and says why."""
    origin = place.environ.pop("FOREBAY_ALLOW_ORIGIN")
    place.begin("--strict-origins")
    done = place.forebay("run", "--allow-origin", origin, "--strict-origins", "--", "echo", "ran")
    assert done.stdout == b"ran\n"
    assert b"strict origins allow what the start named, and nothing later" in done.stderr
    assert b"running without Forebay" not in done.stderr


def test_other_credentials_get_a_directory_of_their_own(place: Place) -> None:
    """Two sidecars side by side, each found again by its own environment; env leads to the right one."""
    place.forebay("run", "--idle-exit-s", "30", "--", "true")
    place.forebay("run", "--idle-exit-s", "30", "--", "true", AWS_PROFILE="other")
    assert b"joined" in place.forebay("run", "--", "true", AWS_PROFILE="other").stderr
    main, other = place.directory.live()
    assert other.cache_dir == f"{main.cache_dir}-{other.fingerprint}"
    assert main.url.encode() in place.forebay("env").stdout
    assert other.url.encode() in place.forebay("env", AWS_PROFILE="other").stdout


def test_defaults_are_said_with_their_flags(place: Place) -> None:
    """Directory and size chosen by rule are said by whoever starts a sidecar, ``run`` and ``fb.sidecar()`` (``launch``)."""
    environ = {"FOREBAY_CACHE_DIR": "", "FOREBAY_CACHE_SIZE": "", "TMPDIR": "", "XDG_CACHE_HOME": str(place.path / "xdg")}
    done = place.forebay("run", "--idle-exit-s", "30", "--", "true", **environ)
    assert b"--cache-dir changes it" in done.stderr
    assert b"--cache-size changes it" in done.stderr
    place.forebay("stop", **environ)
    told = json.loads(place.forebay("launch", "--idle-exit-s", "1", **environ).stdout)
    assert ["--cache-dir changes it" in text for text in told["notices"]].count(True) == 1
    assert ["--cache-size changes it" in text for text in told["notices"]].count(True) == 1


def test_a_sidecar_from_code_that_is_joined_is_told_what_differs(place: Place) -> None:
    """``fb.sidecar()``: the same options again are no news; others are named with both values; origins are handed over."""
    origin = place.environ.pop("FOREBAY_ALLOW_ORIGIN")
    asked = ("launch", "--cache-size", "150MB")
    assert json.loads(place.forebay(*asked, "--idle-exit-s", "30").stdout)["without_effect"] is None
    assert json.loads(place.forebay(*asked).stdout)["without_effect"] == []
    assert json.loads(place.forebay("launch").stdout)["without_effect"] == ["--cache-size 150 MB, not 200 MB"]
    assert json.loads(place.forebay(*asked, "--allow-origin", origin).stdout)["without_effect"] == []
    read = place.forebay("run", "--", sys.executable, "-c", READ, place.proxy_path)
    assert read.stdout == place.data


def test_a_stopped_one_is_named_and_can_be_ended(place: Place) -> None:
    """By the verbs that ask it, ``doctor`` among them, by ``run``, which goes on without; ``stop`` does not wait for it in vain."""
    place.begin()
    (record,) = place.directory.live()
    os.kill(record.pid, signal.SIGSTOP)
    said = f"(pid {record.pid}) is stopped, so it does not answer; 'kill -CONT {record.pid}' lets it go on, 'forebay stop' ends it".encode()
    with verb_process(place.environ, "run", "--", "echo", "trained") as running, verb_process(place.environ, "status") as asking:
        watching, looking = verb_process(place.environ, "top"), verb_process(place.environ, "doctor", "--json")
        assert said in asking.communicate()[1]
        assert said in watching.communicate()[1]
        found = json.loads(looking.communicate()[0])["findings"][-1]
        trained, told = running.communicate()
    assert (watching.returncode, looking.returncode, found["level"]) == (2, 1, "fault")
    assert f"{found['text']}; {found['next_step']}".encode().endswith(said)
    assert (asking.returncode, running.returncode, trained) == (2, 0, b"trained\n")
    assert said in told
    ended = place.forebay("stop")
    assert (ended.returncode, ended.stdout) == (0, f"the sidecar at {record.url} (pid {record.pid}) has ended\n".encode()), ended.stderr
