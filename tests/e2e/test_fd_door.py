"""The fd door of a real sidecar: leases end when they should, and whatever happens to the sidecar, what is open stays right."""

from __future__ import annotations

import json
import mmap
import os
import socket
import subprocess
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.sidecar import FOREBAY, Sidecar, environment, running, start, wait_until
from support.warm_python import python_program

import forebay_loader as fb
from forebay_loader.base.counters import COUNTS
from forebay_loader.stream.descriptor_request import open_descriptor
from forebay_loader.stream.shard_descriptor import Descriptor
from forebay_loader.transport.fd_endpoint import DOORS
from forebay_proxy.wire.commands.sources import Source, parse_source
from forebay_proxy.wire.protocol.fd import decode_answer, encode_request

SIZE = (8 << 20) * 2 + 12_345
APART = 1_009
READER = "job/0/0/1.1"


@pytest.fixture(scope="module")
def chance() -> memoryview:
    return memoryview(os.urandom(SIZE + 5 * APART))


@pytest.fixture
def shards(place: Path, chance: memoryview) -> Path:
    """A directory of six different shards, which the sidecar may read."""
    found = place / "shards"
    found.mkdir()
    for number in range(6):
        (found / f"{number}.tar").write_bytes(chance[number * APART :][:SIZE])  # no byte is where another shard has it
    return found


@pytest.fixture(autouse=True)
def fresh_door() -> Iterator[None]:
    COUNTS.reset()
    DOORS.forget()
    yield
    DOORS.forget()


def flags(place: Path, size: str = "1GB") -> list[str]:
    return ["--cache-size", size, "--file-root", str(place / "shards"), "--socket", str(place / "s")]


def source(shards: Path, number: int) -> Source:
    found = parse_source(f"file://{shards}/{number}.tar")
    assert found is not None
    return found


def fetched(sidecar: Sidecar, shards: Path, *numbers: int) -> None:
    """Have the sidecar hold these shards whole."""
    for number in numbers:
        assert len(sidecar.ask(f"/file{shards}/{number}.tar")) == SIZE
    complete = {f"file://{shards}/{number}.tar" for number in numbers}
    wait_until(lambda: complete <= {name for name, shard in sidecar.shards().items() if shard["complete"]})


def by_descriptor(shards: Path, number: int) -> Descriptor:
    found = open_descriptor(source(shards, number), READER)
    assert found is not None
    return found


def descriptors(sidecar: Sidecar) -> int:
    return int(sidecar.status()["cache"]["descriptors"])


def no_leases(sidecar: Sidecar) -> None:
    wait_until(lambda: descriptors(sidecar) == 0)


def test_the_url_alone_leads_to_the_door(place: Path, shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By /v1/status; the opening counts as a hit with all its bytes."""
    with running(place, *flags(place)) as sidecar:
        monkeypatch.setenv("FOREBAY_URL", sidecar.url)
        assert sidecar.status()["fd_socket"] == f"{place}/s.fd"
        fetched(sidecar, shards, 0)
        assert open_descriptor(source(shards, 1), READER) is None
        before = sidecar.status()
        with by_descriptor(shards, 0) as found:
            assert found.at(0, found.size) == (shards / "0.tar").read_bytes()
            status = sidecar.status()
            assert status["requests"]["hit"] - before["requests"]["hit"] == 1
            assert status["bytes"]["hit"] - before["bytes"]["hit"] == SIZE
            assert [reader["reader"] for reader in status["readers"]] == [READER]
            assert sidecar.metric("forebay_descriptor_leases") == 1
        no_leases(sidecar)
        assert sidecar.metric("forebay_door_answers_total", answer="passed") == 1
        assert sidecar.metric("forebay_door_answers_total", answer="incomplete") == 1


def test_a_view_that_outlives_its_reader_is_counted(place: Path, shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Status and metrics tell it, an idle sidecar waits for it, and both end once the view is gone."""
    with running(place, *flags(place), "--idle-exit-s", "2") as sidecar:
        monkeypatch.setenv("FOREBAY_URL", sidecar.url)
        fetched(sidecar, shards, 0)
        with by_descriptor(shards, 0) as found:
            view = memoryview(mmap.mmap(found._file, 0, access=mmap.ACCESS_READ))[SIZE - 100 :]
        cache = wait_until(lambda: (cache := sidecar.status()["cache"])["lingering"] and cache)
        assert (cache["descriptors"], cache["lingering"]) == (1, 1)
        assert cache["descriptor_bytes"] == cache["stored_bytes"] <= cache["leased_bytes"]
        assert sidecar.metric("forebay_descriptor_leases") == 1
        with pytest.raises(subprocess.TimeoutExpired):  # asked by nobody, and longer than it would wait
            sidecar.process.wait(5)
        assert view == (shards / "0.tar").read_bytes()[-100:]
        view.release()
        assert sidecar.process.wait(240) == 0


def test_a_killed_sidecar_takes_nothing_away(place: Path, shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """kill -9 and a start: the new one knows of no lease, wants the room, and cannot have it; the file stays right throughout."""
    monkeypatch.setenv("FOREBAY_SOCKET", str(place / "s"))
    content = (shards / "0.tar").read_bytes()
    first = start(place, *flags(place, "80MB"))
    try:
        fetched(first, shards, 0)
        held = by_descriptor(shards, 0)
    finally:
        first.kill()
    assert held.at(0, held.size) == content
    with held, running(place, *flags(place, "80MB")) as second:
        second.ask("/v1/evict", json.dumps({"shards": ["*"]}).encode(), "POST")
        assert second.ask(f"/file{shards}/0.tar") == content
        fetched(second, shards, 1, 2, 3)  # more than fits beside it
        assert held.at(0, held.size) == content
        for number in range(6):
            assert second.ask(f"/file{shards}/{number}.tar") == (shards / f"{number}.tar").read_bytes()
        assert held.at(0, held.size) == content
        held.close()


def test_another_user_is_refused(place: Path, shards: Path) -> None:
    """By the socket's mode; and where somebody opened that, by the kernel's word."""
    if os.getuid():
        pytest.skip("needs root, to become somebody else")
    with running(place, *flags(place)) as sidecar:
        fetched(sidecar, shards, 0)
        assert _as_somebody_else(place, shards) == "PermissionError"
        place.chmod(0o755)
        (place / "s.fd").chmod(0o666)
        assert _as_somebody_else(place, shards) == "403"
        assert sidecar.metric("forebay_auth_failures_total", reason="uid") == 1


def _as_somebody_else(place: Path, shards: Path) -> str:
    """What uid 65534 hears at the door."""
    told, say = os.pipe()
    child = os.fork()
    if not child:
        os.setuid(65_534)
        try:
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(place / "s.fd"))
                with suppress(BrokenPipeError):  # it has answered already
                    client.sendall(encode_request(f"file://{shards}/0.tar", ""))
                line, descriptors, _, _ = socket.recv_fds(client, 4096, 1)
                os.write(say, str(decode_answer(line).status + len(descriptors)).encode())
        except OSError as error:
            os.write(say, type(error).__name__.encode())
        os._exit(0)
    os.waitpid(child, 0)
    answer = os.read(told, 100).decode()
    os.close(told)
    os.close(say)
    return answer


_TRAINING = """
import json, sys, zlib
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from forebay_loader.base.counters import counters
from forebay_loader.stream.shard_descriptor import Descriptor
from forebay_loader.stream.webdataset_openers import open_source
from forebay_proxy.wire.commands.sources import parse_source

urls = sys.argv[1:]

class Shards(IterableDataset):
    def __iter__(self):
        for url in urls[get_worker_info().id :: 4]:
            with open_source(parse_source(url)) as opened:
                yield url, zlib.crc32(opened.read()), isinstance(opened, Descriptor)

first = open_source(parse_source(urls[0]))
assert isinstance(first, Descriptor) and first.read(100)
loader = DataLoader(Shards(), batch_size=None, num_workers=4, persistent_workers=True, multiprocessing_context="fork")

def epoch():
    print(json.dumps([list(found) for found in loader]), flush=True)

epoch()
sys.stdin.readline()
first.close()
print("closed", flush=True)
sys.stdin.readline()
epoch()
"""


def test_a_lease_of_the_main_process_ends_though_workers_live_on(place: Path, shards: Path) -> None:
    """It reads one shard, forks four persistent workers, closes it: lease and lock are gone, the shard may leave, the workers go on."""
    urls = [f"file://{shards}/{number}.tar" for number in range(6)]
    sums = {url: zlib.crc32((shards / f"{number}.tar").read_bytes()) for number, url in enumerate(urls)}
    with running(place, *flags(place)) as sidecar:
        fetched(sidecar, shards, *range(6))
        environ = environment(place, FOREBAY_SOCKET=str(place / "s"))
        training = python_program(["-c", _TRAINING, *urls], environ, place, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        with training:
            assert training.stdin is not None
            assert training.stdout is not None
            found = json.loads(training.stdout.readline())
            assert {url: total for url, total, _ in found} == sums
            assert all(by_descriptor for *_, by_descriptor in found)
            wait_until(lambda: descriptors(sidecar) == 1)
            evict = json.dumps({"shards": [urls[0]]}).encode()
            assert json.loads(sidecar.ask("/v1/evict", evict, "POST")) == {"shards": 0, "bytes": 0, "leased": 1}
            training.stdin.write("\n")
            training.stdin.flush()
            assert training.stdout.readline() == "closed\n"
            no_leases(sidecar)
            assert json.loads(sidecar.ask("/v1/evict", evict, "POST"))["shards"] == 1
            assert urls[0] not in sidecar.shards()
            training.stdin.write("\n")
            training.stdin.flush()
            assert {url: total for url, total, _ in json.loads(training.stdout.readline())} == sums
        assert training.returncode == 0


def test_a_run_directory_with_a_long_name(place: Path) -> None:
    """A default socket that the kernel would not take is left out, which is said; the sidecar serves all the same."""
    run = place / ("r" * 100)
    run.mkdir(mode=0o700)
    command = [*FOREBAY, "serve", "--json", "--port", "0", "--cache-dir", str(place / "cache"), "--cache-size", "100MB"]
    environ = {**environment(place), "XDG_RUNTIME_DIR": str(run)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            ready = json.loads(process.stdout.readline())
            found = fb.status({**environ, "FOREBAY_URL": ""})  # by the run file
        finally:
            process.terminate()
            said = process.communicate(timeout=240)[1]
    assert (ready["socket"], found.where) == (None, ready["url"])
    assert f"no unix socket and no fd door, all is served over HTTP: {run}/forebay.sock is too long" in said
