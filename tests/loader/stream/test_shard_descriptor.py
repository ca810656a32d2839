"""A shard by descriptor: what is read, what ends with it, what a fork inherits, and HTTP wherever the door does not do."""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from support.fake_proxy import FakeServer
from support.seams import swapped

from forebay_loader.base.activity import NOTHING, here
from forebay_loader.base.counters import counters
from forebay_loader.stream import descriptor_request
from forebay_loader.stream.descriptor_request import open_descriptor
from forebay_loader.stream.shard_descriptor import Descriptor
from forebay_loader.stream.webdataset_openers import open_source
from forebay_loader.transport import fd_client, fd_endpoint, hung_sidecar
from forebay_loader.transport import fd_client as asking_module
from forebay_loader.transport.endpoint import INSTANCES
from forebay_loader.transport.fd_client import CONNECTIONS
from forebay_loader.transport.fd_endpoint import DOORS
from forebay_loader.transport.hung_sidecar import HUNG
from forebay_proxy.wire.commands.sources import Source, parse_source
from forebay_proxy.wire.protocol.fd import decode_end, decode_request, door_path, encode_answer, encode_refusal

DATA = bytes(range(256)) * 400
READER = "job/0/0/1.1"
Answer = Callable[[socket.socket, bytes, int], None]


def source(text: str = "https://origin.example/a.tar") -> Source:
    found = parse_source(text)
    assert found is not None
    return found


def passed(client: socket.socket, answer: bytes, *files: int) -> None:
    socket.send_fds(client, [answer], files)


def pass_on(client: socket.socket, line: bytes, file: int) -> None:
    passed(client, encode_answer(len(DATA), '"v1"', "00ff"), file)


class FakeDoor:
    """Answers, each client in a thread of its own, and hears which leases end."""

    def __init__(self, path: Path, answer: Answer) -> None:
        self.path = path
        self.answer = answer
        self.lines: list[bytes] = []
        self.clients: list[socket.socket] = []
        self.ends: list[int] = []  # leases that were ended by a line
        self.left = 0  # clients
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        shard = path.with_suffix(".tar")
        shard.write_bytes(DATA)
        self.file = os.open(shard, os.O_RDONLY)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(16)
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.clients.append(client)
                self._threads.append(threading.Thread(target=self._serve, args=(client,)))
                self._threads[-1].start()

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as lines, suppress(OSError):
            for line in lines:
                number = decode_end(line)
                if number is not None:
                    with self._changed:
                        self.ends.append(number)
                        self._changed.notify_all()
                else:
                    self.lines.append(line)
                    self.answer(client, line, self.file)
        with self._changed:
            self.left += 1
            self._changed.notify_all()

    def ended(self, number: int = 0) -> bool:
        """Whether that lease has ended, by its line."""
        with self._changed:
            return self._changed.wait_for(lambda: number in self.ends, 60)

    def empty(self) -> bool:
        """Whether all clients have left."""
        with self._changed:
            return self._changed.wait_for(lambda: self.left == len(self.clients), 60)

    def hang_up(self) -> None:
        """As a sidecar that ends."""
        for client in self.clients:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        assert self.empty()

    def close(self) -> None:
        self.path.unlink(missing_ok=True)
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        CONNECTIONS.clear()
        self.hang_up()
        for each in self._threads:
            each.join(10)
        self._listener.close()
        os.close(self.file)


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDoor]:
    """A door that passes ``DATA``, beside the socket that FOREBAY_SOCKET names."""
    found = FakeDoor(tmp_path / "s.fd", pass_on)
    monkeypatch.delenv("FOREBAY_FD")
    monkeypatch.setenv("FOREBAY_SOCKET", str(tmp_path / "s"))
    DOORS.forget()
    yield found
    found.close()
    DOORS.forget()


def passed_on() -> Descriptor:
    found = open_descriptor(source(), READER)
    assert found is not None
    return found


@contextmanager
def no_descriptor_lost(door: FakeDoor) -> Iterator[None]:
    """Nothing stays open but the connection that is kept for the next question, which closes when nobody keeps it."""
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(CONNECTIONS) <= 1
    CONNECTIONS.clear()
    assert door.empty()
    until = time.monotonic() + 30.0  # the fake door's own thread closes its ends a moment later
    while len(os.listdir("/proc/self/fd")) > before and time.monotonic() < until:
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) <= before  # fewer where what an earlier test left was collected meanwhile


def test_a_shard_is_opened(door: FakeDoor) -> None:
    """All of it, with its ETag."""
    with passed_on() as found:
        assert (found.at(0, len(DATA)), found.size, found.etag) == (DATA, len(DATA), '"v1"')
    assert counters()["opened_descriptor"] == counters()["opened"] == 1
    assert counters()["bytes_proxy"] == len(DATA)


def test_it_reads_like_a_stream(door: FakeDoor) -> None:
    """Bytes in order, fewer only at the end."""
    with passed_on() as found:
        assert found.read(10) == DATA[:10]
        assert found.read1(5) == DATA[10:15]
        assert found.read() == DATA[15:]
        assert found.read(10) == b""
        assert found.readable()


def test_the_request_says_who_asks_and_for_what(door: FakeDoor) -> None:
    """The origin's URL, the reader, and the headers of the command."""
    found = open_descriptor(source("pipe:curl -s -L -H 'Authorization: Bearer x' https://origin.example/a.tar"), READER)
    assert found is not None
    found.close()
    asked = decode_request(door.lines[0])
    assert (asked.shard, str(asked.reader)) == ("https://origin.example/a.tar", READER)
    assert asked.headers == (("Authorization", "Bearer x"),)


def test_the_parts_of_a_sample_are_one_wait(door: FakeDoor) -> None:
    """To mark each of its small files costs as much as to read it."""
    with passed_on() as found:
        before = here().number
        assert found.parts([(0, 5), (700, 3), (9, 0)]) == [DATA[:5], DATA[700:703], b""]
        assert found.at(5, 4) == DATA[5:9]
        assert here().number == before + 2
        assert here().cause == NOTHING


def test_a_closed_map_gives_nothing(door: FakeDoor) -> None:
    """Loudly."""
    found = passed_on()
    found.close()
    found.close()
    with pytest.raises(ValueError, match="closed shard"):
        found.read(1)


def test_closing_ends_the_lease_though_a_copy_is_open(door: FakeDoor) -> None:
    """A process that was started behind Python's back may have inherited the connection."""
    found = passed_on()
    assert found._asking is not None
    copy = found._asking._socket.dup()
    found.close()
    assert door.ended()
    copy.close()


def test_one_connection_serves_shard_after_shard(door: FakeDoor) -> None:
    """Each lease has a number of its own, and ends alone."""
    first, second = passed_on(), passed_on()
    assert [decode_request(line).lease for line in door.lines] == [0, 1]
    first.close()
    assert door.ended(0)
    assert (second.read(3), door.ends, len(door.clients)) == (DATA[:3], [0], 1)
    second.close()
    assert door.ended(1)


def test_a_sidecar_that_was_restarted_is_asked_anew(door: FakeDoor) -> None:
    """The kept connection has ended meanwhile: no failure, and what is mapped goes on."""
    held = passed_on()
    door.hang_up()
    with passed_on() as found:
        assert found.read() == held.read() == DATA
    held.close()
    assert (counters()["opened_descriptor"], counters()["door_failed"], len(door.clients)) == (2, 0, 2)


def test_a_kept_connection_that_ends_while_it_is_asked_is_no_failure(door: FakeDoor) -> None:
    """The sidecar left after the line was sent: another connection does."""
    passed_on().close()

    def leaving(client: socket.socket, line: bytes, file: int) -> None:
        door.answer = pass_on
        client.shutdown(socket.SHUT_RDWR)

    door.answer = leaving
    with passed_on() as found:
        assert found.read() == DATA
    assert (counters()["door_failed"], len(door.clients)) == (0, 2)


def test_threads_do_not_share_a_question(door: FakeDoor) -> None:
    """Each has its own connection while it waits."""
    barrier = threading.Barrier(2)

    def together(client: socket.socket, line: bytes, file: int) -> None:
        barrier.wait(60)
        pass_on(client, line, file)

    door.answer = together
    found = list[bytes]()

    def read() -> None:
        with passed_on() as opened:
            found.append(opened.read())

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert (found, len(door.clients)) == ([DATA, DATA], 2)


def test_a_map_that_is_dropped_ends_its_lease(door: FakeDoor) -> None:
    """As a generator that nobody reads to its end."""
    with no_descriptor_lost(door):
        found = passed_on()
        del found
        gc.collect()
        assert door.ended()


def test_one_that_is_closed_at_the_interpreters_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module's names may be gone by then: the lease ends all the same, and nothing is printed."""
    ours, theirs = socket.socketpair()
    asking = asking_module.FdClient(str(tmp_path), ours)
    for name in [name for name in vars(asking_module) if not name.startswith("__")]:
        monkeypatch.setattr(asking_module, name, None)
    asking.__del__()
    with theirs:
        assert theirs.recv(1) == b""


def test_what_is_received_does_not_reach_other_programs(door: FakeDoor) -> None:
    """Close-on-exec: a program that a worker starts would keep the shard for ever."""
    with passed_on() as found:
        assert not os.get_inheritable(found._file)


def test_thousands_of_openings_leave_nothing_open(door: FakeDoor) -> None:
    """Neither descriptors nor maps."""
    with no_descriptor_lost(door):
        for _ in range(1000):
            passed_on().close()
        assert len(door.clients) == 1
        with open("/proc/self/maps", encoding="utf-8") as maps:
            assert not [line for line in maps if "s.tar" in line]


def test_a_forked_child_lets_go_of_what_it_inherited(door: FakeDoor) -> None:
    """Its parent's lease ends with its parent's close, and the child has no map of the shard; the parent's goes on."""
    found = passed_on()
    told, say = os.pipe()
    wait, go_on = os.pipe()
    child = os.fork()
    if not child:
        os.close(go_on)
        with open("/proc/self/maps", encoding="utf-8") as maps:
            held = [line for line in maps if "s.tar" in line]
        sockets = [name for name in os.listdir("/proc/self/fd") if _is_door(name, door)]
        os.write(say, json.dumps([len(held), found.closed, len(sockets)]).encode())
        os.read(wait, 1)
        os._exit(0)
    try:
        assert json.loads(os.read(told, 100)) == [0, True, 0]
        assert found.read(5) == DATA[:5]
        found.close()
        assert door.ended()
    finally:
        for each in (told, say, wait, go_on):
            os.close(each)
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(("owner", "step"), [(descriptor_request, "_held"), (Descriptor, "_drop")], ids=["a file has come", "a file goes"])
def test_a_fork_by_another_thread_waits_for_a_descriptor_on_its_way(
    owner: object, step: str, door: FakeDoor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child made before it is in our list, or while it goes, would hold the kernel's lease for as long as it lives."""
    inside, forked, real = threading.Event(), threading.Event(), getattr(owner, step)

    def paused(*args: Any) -> Any:
        inside.set()
        forked.wait(0.5)  # a fork that does not wait for us is done by then
        return real(*args)

    monkeypatch.setattr(owner, step, paused)
    opening = threading.Thread(target=lambda: passed_on().close())
    opening.start()
    assert inside.wait(60)
    child = os.fork()
    if not child:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            held = [line for line in maps if "s.tar" in line]
        shards = [name for name in os.listdir("/proc/self/fd") if int(name) != door.file and _leads_to("s.tar", name)]
        os._exit(len(held) + len(shards))
    forked.set()
    opening.join(10)
    assert os.waitpid(child, 0)[1] == 0
    assert door.ended()


def _leads_to(name: str, number: str) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{number}").endswith(name)
    except OSError:
        return False


def _is_door(name: str, door: FakeDoor) -> bool:
    try:
        with socket.socket(fileno=os.dup(int(name))) as found:
            return found.family == socket.AF_UNIX and found.getpeername() == str(door.path)
    except OSError:
        return False


def test_a_refusal_is_http(door: FakeDoor) -> None:
    """Counted as nothing: it is no failure."""
    with no_descriptor_lost(door):
        door.answer = lambda client, line, file: client.sendall(encode_refusal(409, "not complete", "00ff"))
        assert open_descriptor(source(), READER) is None
    assert (counters()["opened"], counters()["door_failed"]) == (0, 0)


def _half(client: socket.socket, line: bytes, file: int) -> None:
    socket.send_fds(client, [b'{"size"'], [file])
    client.shutdown(socket.SHUT_RDWR)


def _endless(client: socket.socket, line: bytes, file: int) -> None:
    with suppress(OSError):
        while True:
            client.sendall(b"x" * 1000)


TROUBLE: dict[str, Answer] = {
    "it says a byte more": lambda client, line, file: passed(client, encode_answer(len(DATA) + 1, '"v1"', ""), file),
    "no descriptor": lambda client, line, file: client.sendall(encode_answer(len(DATA), '"v1"', "")),
    "a refusal with a descriptor": lambda client, line, file: passed(client, encode_refusal(409, "no"), file),
    "nonsense": lambda client, line, file: passed(client, b"HTTP/1.1 400 Bad Request\r\n\r\n\n", file),
    "an end without a word": lambda client, line, file: client.shutdown(socket.SHUT_RDWR),
    "two descriptors": lambda client, line, file: passed(client, encode_answer(len(DATA), '"v1"', ""), file, file),
    "half an answer": _half,
    "an endless one": _endless,
}


@pytest.mark.parametrize("trouble", TROUBLE)
def test_a_door_in_trouble_is_http(door: FakeDoor, trouble: str) -> None:
    """Counted, with nothing left open."""
    door.answer = TROUBLE[trouble]
    with no_descriptor_lost(door):
        assert open_descriptor(source(), READER) is None
    assert (counters()["opened"], counters()["door_failed"]) == (0, 1)


@pytest.fixture
def short_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fd_client, "LOOK_S", 0.1)


@pytest.mark.usefixtures("short_look")
def test_a_door_that_hangs_is_left_alone_for_a_while(door: FakeDoor) -> None:
    """One shard waits for it, not each of them."""
    door.answer = lambda client, line, file: None
    for _ in range(3):
        assert open_descriptor(source(), READER) is None
    assert door.empty()
    assert len(door.lines) == counters()["door_failed"] == 1


def test_a_door_that_is_gone_is_looked_for_again(door: FakeDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first opening after it left is counted; the others do not try before it may be back."""
    now = [0.0]
    monkeypatch.setattr(DOORS, "_clock", lambda: now[0])
    passed_on().close()
    door.path.rename(door.path.with_name("aside"))
    door.hang_up()
    assert [open_descriptor(source(), READER) for _ in range(3)] == [None] * 3
    assert counters()["door_failed"] == 1
    door.path.with_name("aside").rename(door.path)
    now[0] = fd_endpoint.FAILED_S
    passed_on().close()


def test_a_header_that_a_line_cannot_say_is_http(door: FakeDoor) -> None:
    """Without asking, and no failure."""
    odd = Source(source().url, (("X-Name", "é"),), "text")
    assert open_descriptor(odd, READER) is None
    assert (door.lines, counters()["door_failed"]) == ([], 0)


def test_the_instance_is_heard(door: FakeDoor) -> None:
    """As with each answer over HTTP: a reader whose plan another instance had tells it again."""
    heard = list[str]()

    class Listener:
        def heard(self, instance: str) -> None:
            heard.append(instance)

    listener = Listener()
    INSTANCES.listen(READER, listener.heard)
    passed_on().close()
    door.answer = lambda client, line, file: client.sendall(encode_refusal(409, "not complete", "11ee"))
    open_descriptor(source(), READER)
    assert heard == ["00ff", "11ee"]


def test_what_the_door_has_not_comes_over_http(door: FakeDoor, proxy: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """``open_source`` tries the door first; both bring the same bytes, under the same name."""
    monkeypatch.delenv("FOREBAY_URL")
    with open_source(source()) as found:
        assert isinstance(found, Descriptor)
        assert found.read() == DATA
    monkeypatch.setattr(DOORS, "path", lambda: str(door.path))
    monkeypatch.setenv("FOREBAY_URL", proxy.url)
    proxy.put("/https/origin.example/a.tar", DATA)
    door.answer = lambda client, line, file: client.sendall(encode_refusal(409, "not complete"))
    with open_source(source()) as found:
        assert not isinstance(found, Descriptor)
        assert found.read() == DATA


def test_the_door_is_found_by_the_run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the socket of the sidecar that it is about, and of no other."""
    at = fd_endpoint.Endpoint("127.0.0.1", 7070)
    swapped(
        monkeypatch,
        fd_endpoint,
        read_run_file=lambda environ: {"url": "http://127.0.0.1:7070", "socket": str(tmp_path / "r")},
        find_endpoint=lambda environ: at,
    )
    assert fd_endpoint.find_door({}) is None
    (tmp_path / "r.fd").touch()
    assert fd_endpoint.find_door({}) == str(tmp_path / "r.fd")
    assert fd_endpoint.find_door({"FOREBAY_FD": "0"}) is None
    at = fd_endpoint.Endpoint("127.0.0.1", 9)
    assert fd_endpoint.find_door({}) is None


@pytest.mark.parametrize("told", ["null", '"relative"', "5", "nothing", "{}", "[]"])
def test_a_status_without_a_door_is_http(proxy: FakeServer, told: str) -> None:
    """An older sidecar, or one on a file system without locks."""
    proxy.put("/v1/status", f'{{"fd_socket": {told}}}'.encode())
    assert fd_endpoint.find_door(os.environ | {"FOREBAY_FD": ""}) is None


def test_the_door_is_found_by_the_status(proxy: FakeServer, tmp_path: Path) -> None:
    """So FOREBAY_URL alone leads to it."""
    (tmp_path / "t.fd").touch()
    proxy.put("/v1/status", json.dumps({"fd_socket": str(tmp_path / "t.fd")}).encode())
    assert fd_endpoint.find_door(os.environ | {"FOREBAY_FD": ""}) == str(tmp_path / "t.fd")


_NO_DESCRIPTORS = """
import os, resource, sys
from forebay_loader.stream.descriptor_request import open_descriptor
from forebay_loader.base.counters import counters
from forebay_loader.transport import fd_client
from forebay_proxy.wire.commands.sources import parse_source
fd_client.LOOK_S = 50.0  # the door is a thread of a test that other programs may keep waiting
source = parse_source("https://origin.example/a.tar")
open_descriptor(source, "").close()
lowest = os.open("/dev/null", os.O_RDONLY); os.close(lowest)
resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, lowest))  # the connection has the last one
assert open_descriptor(source, "") is None
print(counters()["door_failed"])
"""


def test_a_process_without_descriptors_goes_on_over_http(door: FakeDoor) -> None:
    """The kernel drops what it cannot hand over, and says so."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, "-c", _NO_DESCRIPTORS], env=environ, capture_output=True, text=True, timeout=240, check=False)
    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr


# A door behind which nobody turns: one silence, which HTTP does not wait out again.


SOURCE = parse_source("s3://bucket/x.tar")


@pytest.fixture
def short_silences(monkeypatch: pytest.MonkeyPatch, short_look: None) -> None:
    monkeypatch.delenv("FOREBAY_FD")
    monkeypatch.setattr(fd_endpoint, "STATUS_S", 0.1)
    monkeypatch.setattr(hung_sidecar, "TURNS_S", 0.1)


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A sidecar whose sockets let nobody in any more."""
    path = str(tmp_path / "s")
    with ExitStack() as held:
        for place in (path, door_path(path)):
            listening = held.enter_context(socket.socket(socket.AF_UNIX))
            listening.bind(place)
            listening.listen(0)
            waiting = held.enter_context(socket.socket(socket.AF_UNIX))
            waiting.connect(place)
        monkeypatch.setenv("FOREBAY_SOCKET", path)
        yield


@pytest.mark.usefixtures("short_silences", "full")
def test_a_door_that_lets_nobody_in_is_a_sidecar_that_hangs() -> None:
    """Known at once."""
    assert open_descriptor(SOURCE, "j/0/0/1.0") is None
    assert HUNG.known()


@pytest.mark.usefixtures("short_silences")
@pytest.mark.parametrize("is_turning", [False, True])
def test_a_door_that_only_its_sidecar_could_tell(proxy: FakeServer, is_turning: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By ``FOREBAY_URL`` alone. One that turns and does not say is no sidecar that hangs."""
    if is_turning:
        monkeypatch.setattr(hung_sidecar, "TURNS_S", 60.0)
    else:
        proxy.turning.clear()
    try:
        assert open_descriptor(SOURCE, "j/0/0/1.0") is None
        assert HUNG.known() is not is_turning
    finally:
        proxy.turning.set()
