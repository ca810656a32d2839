"""Asked to end, the real sidecar ends well: bodies on their way come whole or are cut, claims stay, and nothing hangs for ever."""

from __future__ import annotations

import asyncio
import http.client
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from support import nginx as servers
from support import rigged
from support.readers import Got, make_shard, read
from support.scripted_origin import ScriptedOrigin
from support.sidecar import FOREBAY, Sidecar, environment, running, start, wait_until
from support.tars import expected, tar_shard
from support.verbs import verb_process

import forebay_loader as fb
from forebay_proxy.core.exit_codes import ExitCode
from forebay_proxy.core.segments import SEGMENT_BYTES

SIZE = 3 * SEGMENT_BYTES + 54_321
AT_ONCE_S = 15.0  # of a shared machine: what takes 0.2 s alone; every grace below is far longer


@pytest.fixture
def shard(place: Path) -> Path:
    return make_shard(place / "a.tar", SIZE, 1)


def signalled(sidecar: Sidecar, number: signal.Signals = signal.SIGTERM) -> None:
    sidecar.process.send_signal(number)


async def ended(sidecar: Sidecar, within_s: float = 120) -> tuple[int, float]:
    """(exit code, how long it took from now)."""
    began = time.monotonic()
    code = await asyncio.to_thread(sidecar.process.wait, within_s)
    return code, time.monotonic() - began


async def halfway(sidecar: Sidecar, origin: ScriptedOrigin, shard: Path, gate: asyncio.Event) -> asyncio.Task[Got]:
    """A reader that has a segment and waits for the origin, which gives the rest once ``gate`` is open."""
    origin.put("/a.tar", shard.read_bytes(), body_gate=gate, gate_at=1 << 20)
    origin.next("/a.tar", body_gate=None)  # the first segment comes whole
    come = threading.Event()
    reading = asyncio.to_thread(read, sidecar.proxied(origin.url("/a.tar")), shard, seen=lambda count: come.set())
    task = asyncio.create_task(reading)
    await asyncio.to_thread(come.wait, 30)
    return task


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_with_nobody_there_it_ends_at_once(place: Path, number: signal.Signals) -> None:
    """Exit code 0, no run file, no socket, no word of Python."""
    with running(place, "--cache-size", "100MB", "--drain-timeout-s", "60", "--socket", str(place / "s.sock")) as sidecar:
        run_file = place / "run" / "forebay.json"
        assert run_file.exists()
        began = time.monotonic()
        signalled(sidecar, number)
        assert sidecar.process.wait(240) == ExitCode.DONE
        assert time.monotonic() - began < AT_ONCE_S
        assert not run_file.exists()
        assert not (place / "s.sock").exists()
        assert "Traceback" not in sidecar.log_text()


async def test_a_reader_in_the_middle_gets_the_rest(place: Path, origin: ScriptedOrigin, shard: Path) -> None:
    """Meanwhile nobody new is let in: 503 and the way to go on, also on a connection that is kept alive; nobody finds it any more."""
    gate = asyncio.Event()
    with running(place, "--cache-size", "500MB", "--drain-timeout-s", "60", allow=[origin.base]) as sidecar:
        with closing(http.client.HTTPConnection("127.0.0.1", sidecar.port, timeout=120)) as kept:
            assert asked(kept, "/readyz").status == 200
            reading = await halfway(sidecar, origin, shard, gate)
            signalled(sidecar)
            await asyncio.to_thread(wait_until, lambda: not (place / "run" / "forebay.json").exists())
            refused = asked(kept, sidecar.proxied(origin.url("/a.tar")).removeprefix(sidecar.url))
            assert (refused.status, refused.getheader("Connection")) == (503, "close")
            assert int(refused.getheader("Retry-After", "")) >= 1
        with closing(http.client.HTTPConnection("127.0.0.1", sidecar.port, timeout=120)) as fresh:
            assert asked(fresh, "/readyz").status == 503
        assert not reading.done()
        gate.set()
        got = await reading
        code, _ = await ended(sidecar)
    assert (got.whole, got.count, code) == (True, SIZE, ExitCode.DONE)


def asked(connection: http.client.HTTPConnection, path: str) -> http.client.HTTPResponse:
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read()
    return answer


async def test_a_reader_that_does_not_end_is_cut(place: Path, origin: ScriptedOrigin, shard: Path) -> None:
    """After the drain's time; it can tell, and what was claimed is found at the next start."""
    gate = asyncio.Event()
    with running(place, "--cache-size", "500MB", "--drain-timeout-s", "1", allow=[origin.base]) as sidecar:
        reading = await halfway(sidecar, origin, shard, gate)
        signalled(sidecar)
        code, seconds = await ended(sidecar)
        got = await reading
    assert (got.whole, code) == (False, ExitCode.DONE)
    assert 1.0 <= seconds < 1.0 + AT_ONCE_S
    with running(place, "--cache-size", "500MB", allow=[origin.base]) as sidecar:
        assert sidecar.shards()[origin.url("/a.tar")]["segments"] >= 1  # the short last one may have come too


async def test_what_nobody_reads_ends_at_once(place: Path, origin: ScriptedOrigin, shard: Path) -> None:
    """A prefetch, a warm-up and a reader that has left, all of them at an origin that hangs."""
    for name in ("a", "b", "c"):  # a segment each: an origin that is new to the sidecar is asked for few at a time
        origin.put(f"/{name}.tar", shard.read_bytes()[: SEGMENT_BYTES // 2], body_gate=asyncio.Event(), gate_at=1 << 20)
    with running(place, "--cache-size", "500MB", "--drain-timeout-s", "60", allow=[origin.base]) as sidecar:
        sidecar.plan("job/0/0/1.0", [origin.url("/a.tar")])
        await asyncio.to_thread(read, sidecar.proxied(origin.url("/b.tar")), shard, stop_after=1)
        warming = verb_process(environment(place), "warm", origin.url("/c.tar"), "--url", sidecar.url)
        await origin.until(lambda: all(origin.seen(f"/{name}.tar") for name in "abc"))
        signalled(sidecar)
        code, seconds = await ended(sidecar)
        words = await asyncio.to_thread(warming.communicate, timeout=30)
    assert (code, warming.returncode) == (ExitCode.DONE, ExitCode.CANNOT_BEGIN), words
    assert seconds < AT_ONCE_S


async def test_a_successor_waits_for_the_directory(place: Path, origin: ScriptedOrigin, shard: Path) -> None:
    """Started while the other one drains, it finds the name free, waits for the directory, and has its warm bytes."""
    gate = asyncio.Event()
    one = start(place, "--cache-size", "500MB", "--drain-timeout-s", "60", allow=[origin.base])
    reading = await halfway(one, origin, shard, gate)
    signalled(one)
    await asyncio.to_thread(wait_until, lambda: not (place / "run" / "forebay.json").exists())
    starting = asyncio.create_task(asyncio.to_thread(start, place, "--cache-size", "500MB", allow=[origin.base]))
    await asyncio.to_thread(wait_until, lambda: "waiting for it" in one.log_text())  # they write to one log
    assert not starting.done()
    gate.set()
    assert (await reading).whole
    two = await starting
    try:
        assert (await ended(one))[0] == ExitCode.DONE
        assert (place / "run" / "forebay.json").exists()
        assert two.shards()[origin.url("/a.tar")]["complete"]
    finally:
        assert two.terminate() == ExitCode.DONE
        one.terminate()


def test_of_many_that_start_at_once_one_gets_the_directory(place: Path) -> None:
    """The others end with 2 and one line that says who has it, or that it is just starting."""
    command = [*FOREBAY, "serve", "--json", "--port", "0", "--socket", "off", "--cache-dir", str(place / "cache"), "--cache-size", "100MB"]
    many = [subprocess.Popen(command, env=environment(place), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    winners = [process for process in many if process.stdout is not None and process.stdout.readline()]
    assert len(winners) == 1
    losers = [process for process in many if process not in winners]
    for process in losers:
        _, words = process.communicate(timeout=240)
        assert (process.returncode, words.count("\n")) == (ExitCode.CANNOT_BEGIN, 1), words
        assert "is owned by" in words
    winners[0].send_signal(signal.SIGTERM)
    winners[0].communicate(timeout=240)
    assert winners[0].returncode == ExitCode.DONE


@contextmanager
def rigged_sidecar(place: Path, rig: str, *flags: str) -> Iterator[tuple[Sidecar, Path]]:
    """A sidecar with one part rigged to go wrong once the yielded file exists."""
    when = place / "now"
    program = (sys.executable, rigged.__file__, rig)
    sidecar = start(place, "--cache-size", "500MB", *flags, program=program, environ={"RIG_WHEN": str(when)})
    try:
        yield sidecar, when
    finally:
        with suppress(AssertionError):
            sidecar.kill()


async def test_a_disk_that_hangs_does_not_hold_the_end_up(place: Path, origin: ScriptedOrigin, shard: Path) -> None:
    """Forced, with a code of its own and the reason; the reader sees a cut, and the next start is an ordinary one."""
    origin.put("/a.tar", shard.read_bytes())
    with rigged_sidecar(place, "hung_disk", "--drain-timeout-s", "0.5", "--allow-origin", origin.base) as (sidecar, when):
        when.touch()
        reading = asyncio.create_task(asyncio.to_thread(read, sidecar.proxied(origin.url("/a.tar")), shard))
        await origin.until(lambda: bool(origin.seen("/a.tar")))
        await asyncio.sleep(0.3)  # until its write hangs
        signalled(sidecar)
        code, seconds = await ended(sidecar)
        got = (await asyncio.gather(reading, return_exceptions=True))[0]
        assert not (isinstance(got, Got) and got.whole and got.status == 200)
    assert (code, seconds < 0.5 + rigged.CLOSE_S + AT_ONCE_S) == (ExitCode.FORCED, True)
    assert "the end still hung after 1.5 s" in sidecar.log_text()
    with running(place, "--cache-size", "500MB", allow=[origin.base]) as sidecar:
        assert (await asyncio.to_thread(read, sidecar.proxied(origin.url("/a.tar")), shard)).whole


def test_a_loop_that_stands_still_does_not_hold_the_end_up(place: Path) -> None:
    """It hears no signal; the deadline does."""
    with rigged_sidecar(place, "stuck_loop", "--drain-timeout-s", "0.5") as (sidecar, when):
        when.touch()
        wait_until(lambda: not answers(sidecar))
        began = time.monotonic()
        signalled(sidecar)
        assert sidecar.process.wait(240) == ExitCode.FORCED
        assert time.monotonic() - began < 0.5 + rigged.CLOSE_S + AT_ONCE_S


def test_a_third_signal_ends_it_there_and_then(place: Path) -> None:
    """For a person before a terminal that does not come back."""
    with rigged_sidecar(place, "stuck_loop", "--drain-timeout-s", "60") as (sidecar, when):
        when.touch()
        wait_until(lambda: not answers(sidecar))
        for _ in range(3):
            signalled(sidecar, signal.SIGINT)
            time.sleep(0.5)  # two equal signals at once are one
        assert sidecar.process.wait(240) == ExitCode.FORCED


def answers(sidecar: Sidecar) -> bool:
    with closing(http.client.HTTPConnection("127.0.0.1", sidecar.port, timeout=3)) as connection:
        try:
            connection.request("GET", "/healthz")
            return connection.getresponse().status == 200
        except TimeoutError:
            return False


def test_a_background_task_with_a_fault_does_not_go_unnoticed(place: Path) -> None:
    """Begun again, and when that does not help the sidecar ends in good order, non-zero, with one line that says why and no secret."""
    with rigged_sidecar(place, "faulty_prefetch") as (sidecar, when):
        when.touch()
        assert sidecar.process.wait(240) == ExitCode.FAULT
    log = sidecar.log_text()
    assert log.count("prefetch failed: ZeroDivisionError") == 3
    assert log.count("prefetch failed 3 times within") == 1
    assert "secret" not in log
    assert not (place / "run" / "forebay.json").exists()


SHARDS, SAMPLES, BYTES = 3, 16, 1_200_000


@pytest.mark.needs("nginx")
@pytest.mark.parametrize("again", [False, True], ids=["for good", "restarted"])
def test_an_epoch_goes_through_it(place: Path, again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader reads on: the shard it is in comes whole, the next from the origin itself or from the successor; each sample once."""
    wanted = expected(SHARDS, SAMPLES, BYTES)
    (place / "files").mkdir()
    for number in range(SHARDS):
        (place / f"files/{number:03d}.tar").write_bytes(tar_shard(number, SAMPLES, BYTES))
    with servers.nginx(place / "nginx", place / "files") as origin:
        first = start(place, "--cache-size", "200MB", allow=[origin.base()])
        monkeypatch.setenv("FOREBAY_URL", first.url)
        found: list[tuple[str, bytes]] = []
        before = fb.counters()
        successor: list[Sidecar] = []

        def restart() -> None:
            first.process.wait(240)
            if again:
                flags = ("--cache-size", "200MB", "--port", str(first.port))
                successor.append(start(place, *flags, default_port=True, allow=[origin.base()]))

        watcher = threading.Thread(target=restart)
        patient = fb.Limits(open_s=60) if again else fb.Limits()  # a busy machine takes its time to start a successor
        try:
            for sample in fb.WebDataset(origin.url("{000..002}.tar"), shardshuffle=False, limits=patient):
                found.append((sample["__key__"], sample["bin"]))
                if len(found) == 2:
                    signalled(first)
                    watcher.start()
        finally:  # a failure leaves nobody behind: neither the thread nor what it started
            if watcher.ident is not None:
                watcher.join()
            codes = [each.terminate() for each in (first, *successor)]
        assert codes == [ExitCode.DONE] * (1 + again)
    assert len(found) == len(wanted)
    assert dict(found) == wanted
    spent = {name: count - before[name] for name, count in fb.counters().items()}
    assert bool(spent["opened_direct"]) is not again
    assert spent["failed"] == spent["changed"] == 0
    print(spent)
