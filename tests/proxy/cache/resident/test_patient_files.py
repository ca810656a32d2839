"""Files of stored shards on a disk that does not answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.house import SEGMENT, building, data_of, small_segments

from forebay_proxy.cache.resident import patient_files
from forebay_proxy.cache.resident.patient_files import DiskHangs, PatientFiles
from forebay_proxy.core.errors import DiskFailed

A = "s3://b/a.tar"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch)


async def test_a_disk_that_hangs_is_not_asked(tmp_path: Path) -> None:
    """Until a probe came back."""
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(SEGMENT))
        await world.get(A)
        await world.quiet()
        files = PatientFiles(world.files, world.cache.disk)
        world.cache.disk.hung = True
        with pytest.raises(DiskHangs):
            await files.stored(world.entry(A))
        world.cache.disk.hung = False
        assert await files.stored(world.entry(A)) is world.entry(A).stored.file


async def test_who_holds_the_file_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What removes something of it may hang with the disk."""
    monkeypatch.setattr(patient_files, "PATIENCE_S", 0.01)
    async with building(tmp_path / "c") as world:
        world.origin.put(A, data_of(SEGMENT))
        await world.get(A)
        await world.quiet()
        entry = world.entry(A)
        async with entry.stored.lock:
            with pytest.raises(DiskFailed, match="no answer within"):
                await PatientFiles(world.files, world.cache.disk).stored(entry)
