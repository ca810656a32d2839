"""stage_lock.py: of several stages one writes, and only the storage's clock tells whether its holder lives. Over all three storages."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError
from support.seams import refuses, swapped

from forebay_stage import stage_lock
from forebay_stage.destination import Destination, destination_of
from forebay_stage.errors import DestinationFailed, StageBusy
from forebay_stage.s3_destination import S3Destination
from forebay_stage.stage_lock import LOCK, StageLock


def both_at_once(destination: Destination, count: int = 4) -> list[StageLock]:
    """The locks that were taken by ``count`` lockers, which begin at the same moment."""
    barrier, taken, refused = threading.Barrier(count), list[StageLock](), list[StageBusy]()

    def take() -> None:
        lock = destination.lock()
        barrier.wait()
        try:
            lock.take()
            taken.append(lock)
        except StageBusy as busy:
            refused.append(busy)

    threads = [threading.Thread(target=take) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) + len(refused) == count, refused
    return taken


def test_one_at_a_time(destination: Destination) -> None:
    """The second is told who holds it; after the release it gets it."""
    first, second = destination.lock(), destination.lock()
    first.take()
    first.renew()
    with pytest.raises(StageBusy, match=rf"process {os.getpid()} on .*, since 20.*; it renewed its lock _stage/lock\.json \d s ago"):
        second.take()
    first.release()
    second.take()
    first.release()  # it is another's, and stays
    second.renew()
    second.release()
    assert list(destination.names()) == []


def test_several_at_once(destination: Destination) -> None:
    """Exactly one wins, and can renew."""
    (lock,) = both_at_once(destination)
    lock.renew()


def test_a_killed_holder(destination: Destination, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that nobody renews is taken by exactly one of several; a holder that was only asleep learns of it."""
    asleep = destination.lock()
    asleep.take()
    monkeypatch.setattr(stage_lock, "STALE_S", 1)
    time.sleep(2.1)  # the storages' clocks tell seconds
    monkeypatch.setattr(stage_lock, "STALE_S", 1.5)
    (lock,) = both_at_once(destination)
    with pytest.raises(StageBusy, match="process"):
        asleep.renew()
    lock.renew()


def test_a_deleted_lock(destination: Destination) -> None:
    """Whoever deletes the lock by hand ends the stage."""
    lock = destination.lock()
    lock.take()
    destination.delete(LOCK)
    with pytest.raises(StageBusy, match="someone deleted the lock"):
        lock.renew()


def test_an_unreadable_lock(destination: Destination) -> None:
    """A lock that was torn at its making counts like any other."""
    destination.put(LOCK, b"")
    with pytest.raises(StageBusy, match="does not say"):
        destination.lock().take()


@pytest.mark.parametrize(("age_s", "taken"), [(100, False), (130, True)])
def test_age_of_a_lock_in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, age_s: int, taken: bool) -> None:
    """The age is the difference between two files of the folder; this machine's clock, ten minutes off, does not count."""
    destination = destination_of(str(tmp_path))
    destination.lock().take()
    now = (tmp_path / LOCK).stat().st_mtime
    os.utime(tmp_path / LOCK, (now - age_s, now - age_s))
    monkeypatch.setattr(time, "time", lambda: now + 600)
    assert (len(both_at_once(destination)) == 1) is taken


@pytest.mark.parametrize("off_s", [-600, 600])
def test_a_clock_ten_minutes_off(on_moto: S3Destination, off_s: int) -> None:
    """The store's time of the lock and its time of the answer count, however far from this machine's."""
    lock = on_moto.lock()
    lock.take()

    def shift(parsed: dict[str, Any], **_: Any) -> None:
        shifted = parsed["LastModified"].timestamp() + off_s
        parsed["LastModified"] = type(parsed["LastModified"]).fromtimestamp(shifted, parsed["LastModified"].tzinfo)
        parsed["ResponseMetadata"]["HTTPHeaders"]["date"] = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(shifted + 3))

    on_moto._client.meta.events.register("after-call.s3.GetObject", shift)
    with pytest.raises(StageBusy, match="3 s ago"):
        on_moto.lock().take()


def test_a_store_without_conditions(on_moto: S3Destination) -> None:
    """A store that knows no conditional writes, or ignores them, still has one holder: whoever wrote last; the other learns it."""

    def drop(params: dict[str, Any], **_: Any) -> None:
        for name in ("If-None-Match", "If-Match"):
            params["headers"].pop(name, None)

    on_moto._client.meta.events.register("before-call.s3.PutObject", drop)
    first, second = on_moto.lock(), on_moto.lock()
    first.take()
    with pytest.raises(StageBusy):
        second.take()
    holder: dict[str, Any] = {**second._holder, "renewals": 0}
    on_moto.put(LOCK, json.dumps(holder).encode())  # as if it had written at the same moment
    with pytest.raises(StageBusy):
        first.renew()
    second.renew()


def lose(**_: Any) -> None:
    raise ReadTimeoutError(endpoint_url="")


def test_an_answer_that_was_lost(on_moto: S3Destination) -> None:
    """A renewal that reached the store, though its answer did not arrive, leaves the lock with its holder."""
    lock = on_moto.lock()
    lock.take()
    client = on_moto._client
    client.meta.events.register("after-call.s3.PutObject", lose)
    with pytest.raises(DestinationFailed, match="did not answer"):
        lock.renew()
    client.meta.events.unregister("after-call.s3.PutObject", lose)
    lock.renew()
    lock.renew()


def test_a_holder_that_proc_hides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of another user lives, though this one may not see it (mount option hidepid)."""
    destination = destination_of(str(tmp_path))
    destination.lock().take()
    refuses(monkeypatch, os, PermissionError(1, "not yours"), "kill")
    swapped(monkeypatch, os.path, exists=lambda _: False)
    with pytest.raises(StageBusy):
        destination.lock().take()
