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
from pathlib import Path

import pytest
from support.cli import environment

from forebay_proxy.runfile import RunDirectory, process_start_time

FOREBAY = (sys.executable, "-P", "-m", "forebay_proxy.cli")
READ = "import os, sys, urllib.request as r; sys.stdout.buffer.write(r.urlopen(os.environ['FOREBAY_URL'] + sys.argv[1]).read())"

STORED = """
import json, os, time, urllib.request as r
while json.load(r.urlopen(os.environ["FOREBAY_URL"] + "/v1/status"))["cache"]["in_flight"]:
    time.sleep(0.01)
"""


class Place:
    """A user of their own: run directory, cache directory, and an origin with one shard of 3 MB."""

    def __init__(self, path: Path, port: int, data: bytes) -> None:
        self.path, self.data = path, data
        self.shard = f"http://127.0.0.1:{port}/a.tar"
        self.proxy_path = f"/http/127.0.0.1:{port}/a.tar"
        (path / "run").mkdir(mode=0o700)
        settings = {
            "FOREBAY_ALLOW_ORIGIN": f"http://127.0.0.1:{port}", "FOREBAY_CACHE_DIR": str(path / "cache"), "FOREBAY_CACHE_SIZE": "200MB",
            "FOREBAY_PORT": "0", "HOME": str(path),
        }  # fmt: skip
        self.environ = environment(path / "run", **settings)
        self.directory = RunDirectory(path / "run")

    def forebay(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*FOREBAY, *arguments], env={**self.environ, **variables}, capture_output=True, timeout=60, check=False)

    def wait_until_gone(self, pid: int, start: int) -> None:
        while process_start_time(pid) == start and not _is_zombie(pid):
            time.sleep(0.02)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    (tmp_path / "www").mkdir()
    data = os.urandom(3_000_000)
    (tmp_path / "www" / "a.tar").write_bytes(data)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=tmp_path / "www")) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        place = Place(tmp_path, server.server_address[1], data)
        yield place
        for record in place.directory.live():
            os.kill(record.pid, signal.SIGTERM)
            place.wait_until_gone(record.pid, record.start_time)
        server.shutdown()
        thread.join()


def test_run_starts_it_and_the_command_reads_through_it(place: Place) -> None:
    """Bytes are the origin's; the second reading is a hit; the summary says both."""
    script = f'python() {{ "{sys.executable}" -c "$@"; }}; python "$1" "$2"; python "$3"; python "$1" "$2"'
    done = place.forebay("run", "--idle-exit-s", "30", "--", "sh", "-c", script, "sh", READ, place.proxy_path, STORED)
    assert done.returncode == 0, done.stderr
    assert done.stdout == place.data * 2
    assert b"6.0 MB read, 3.0 MB hit (50 %), 3.0 MB from origins, 3.0 MB saved" in done.stderr


def test_status_ls_warm_and_evict_agree(place: Place) -> None:
    """What one verb does the others see."""
    place.forebay("run", "--idle-exit-s", "30", "--", "true")
    warm = place.forebay("warm", place.shard)
    assert (warm.returncode, warm.stdout) == (0, b"1 shards stored, 0 already here, 0 without room, 0 failed; 3.0 MB\n"), warm.stderr
    (shard,) = json.loads(place.forebay("ls", "--json").stdout)["shards"]
    assert (shard["shard"], shard["complete"], shard["length_bytes"]) == (place.shard, True, 3_000_000)
    assert json.loads(place.forebay("status", "--json").stdout)["cache"]["shards"] == 1
    assert b"1 shards in" in place.forebay("status").stdout
    assert place.forebay("evict", place.shard).stdout == b"1 shards evicted, 3.0 MB freed\n"
    assert place.forebay("ls").stdout == b""


def test_a_shard_that_is_not_there_fails_by_name(place: Place) -> None:
    """warm: exit code 1, the shard once in the line."""
    place.forebay("run", "--idle-exit-s", "30", "--", "true")
    missing = place.shard.replace("a.tar", "none.tar")
    done = place.forebay("warm", missing, "--quiet")
    assert done.returncode == 1
    assert done.stderr.decode().count(missing) == 1
    assert b"404" in done.stderr


def test_it_lives_while_a_run_holds_it_and_no_longer(place: Place) -> None:
    """An idle time shorter than the command: the held connection keeps it, and its end lets it go."""
    argv = [*FOREBAY, "run", "--quiet", "--idle-exit-s", "1", "--", "sh", "-c", "echo up; read line"]
    with subprocess.Popen(argv, env=place.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        (record,) = place.directory.live()
        time.sleep(3)
        assert place.directory.live() == [record]
        process.communicate("\n")
    place.wait_until_gone(record.pid, record.start_time)
    assert place.directory.live() == []
    assert not Path(str(record.socket)).exists()


def test_a_second_serve_on_one_directory_says_who_owns_it(place: Place) -> None:
    """Exit code 2, one line with the owner's address."""
    place.forebay("run", "--idle-exit-s", "30", "--", "true")
    (record,) = place.directory.live()
    done = place.forebay("serve")
    assert done.returncode == 2
    assert done.stderr.count(b"\n") == 1
    assert record.url.encode() in done.stderr


def test_other_credentials_get_a_directory_of_their_own(place: Place) -> None:
    """Two sidecars side by side, each found by its own environment; env leads to the right one."""
    place.forebay("run", "--idle-exit-s", "30", "--", "true")
    place.forebay("run", "--idle-exit-s", "30", "--", "true", AWS_PROFILE="other")
    main, other = place.directory.live()
    assert other.cache_dir == f"{main.cache_dir}-{other.fingerprint}"
    assert main.url.encode() in place.forebay("env").stdout
    assert other.url.encode() in place.forebay("env", AWS_PROFILE="other").stdout


@pytest.mark.parametrize("directory", ["/proc/none", "/dev/null/x"])
def test_a_directory_that_cannot_be_is_one_line(place: Place, directory: str) -> None:
    """serve: exit code 2. run: the command runs, and the line says why it is without."""
    done = place.forebay("serve", "--cache-dir", directory)
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert f"cache directory {directory} cannot be created".encode() in done.stderr
    done = place.forebay("run", "--cache-dir", directory, "--", "echo", "ran")
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (0, b"ran\n", 1)
    assert b"cannot be created" in done.stderr


def test_defaults_are_said_with_their_flags(place: Place) -> None:
    """Directory and size chosen by rule are notices, also through run."""
    environ = {"FOREBAY_CACHE_DIR": "", "FOREBAY_CACHE_SIZE": "", "TMPDIR": "", "XDG_CACHE_HOME": str(place.path / "xdg")}
    done = place.forebay("run", "--idle-exit-s", "30", "--", "true", **environ)
    assert b"--cache-dir changes it" in done.stderr
    assert b"--cache-size changes it" in done.stderr
