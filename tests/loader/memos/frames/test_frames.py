"""``fb.frames``: the same frames whether they are kept or not, kept by a process of its own that may be killed at any time."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from support.clips import frame_number, rendered
from support.disks import can_mount
from support.fake_proxy import FakeServer
from support.lengths import LONG
from support.tarmaking import shard_of_samples

import forebay_loader as fb
from forebay_loader.memos import opened_memo
from forebay_loader.memos.errors import MemoError
from forebay_loader.memos.frames import filler, opened_frames
from forebay_loader.memos.frames.frame_store import FrameStore, spool_most
from forebay_loader.memos.frames.spool import Spool
from forebay_loader.videos.sources.choice import source_of
from forebay_loader.videos.sources.clip_bytes import FileClip, MemberClip, ObjectClip

pytestmark = pytest.mark.webdataset

CLIP = rendered(frames=30, gop=10)
OTHER = rendered(frames=20)
SIZE = 64 << 20


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No process is started but where a test asks for one."""
    monkeypatch.setattr(opened_frames, "_started", lambda *_: subprocess.Popen(["true"]))
    monkeypatch.setattr(filler, "_POLL_S", 0.0)
    before = dict(opened_frames._OPEN)
    yield
    for folder in [*opened_frames._OPEN]:
        if folder not in before:
            closed(opened_frames._OPEN.pop(folder))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "frames"


def closed(one: Any) -> None:
    """As its process ends."""
    if one._store is not None:
        one._store.close()
    for process in one._started:
        process.wait()
    os.close(one._users)


def samples(*clips: bytes) -> list[dict[str, Any]]:
    return [{"__key__": str(number), "__url__": "s3://b/0.tar", "mp4": clip} for number, clip in enumerate(clips)]


def run(stage: Any, *clips: bytes) -> list[dict[str, Any]]:
    return list(stage(iter(samples(*clips))))


def stage(folder: Path, quality: int | None = None, sampling: Any = "clip('random', 4, 2)", **more: Any) -> Any:
    return fb.video(sampling, size=96, frames=fb.frames(folder=folder, size=SIZE, quality=quality), **more)


def fill(folder: Path, size: int = SIZE, clock: Callable[[], float] | None = None) -> None:
    """What the process does that fills, here and at once."""
    for one in opened_frames._OPEN.values():
        one._store.close()  # no process may open an LMDB twice; it is opened again when it is next asked
    ticks = iter(range(10_000))
    filler.fill_all(str(folder), size, clock=clock or (lambda: float(next(ticks))))


def since(before: dict[str, int]) -> dict[str, int]:
    now = fb.counters()
    return {name[7:]: now[name] - before[name] for name in now if name.startswith("frames_") and now[name] != before[name]}


def told(folder: Path) -> None:
    """The counts of the process that filled are taken at the next look."""
    opened_frames._OPEN[str(folder.resolve())]._next_look_s = 0.0


def waiting(folder: Path) -> list[Path]:
    return sorted((folder / "spool").glob("*.clip"))


def test_one_process_keeps_all_clips_however_long_each_takes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While somebody trains: that a clip took longer than it waits for others is no reason to end."""
    run(stage(folder), CLIP, rendered(frames=30))
    now = [0.0]

    def slow(*given: Any) -> bool:
        now[0] += 20.0
        return fill_one(*given)

    def clock() -> float:
        now[0] += 0.5
        return now[0]

    fill_one = filler.fill
    monkeypatch.setattr(filler, "fill", slow)
    monkeypatch.setattr(filler, "_POLL_S", 0.0)
    fill(folder, clock=clock)
    assert waiting(folder) == []


def test_frames_come_from_the_store_once_it_is_filled(folder: Path) -> None:
    """Raw ones bit for bit, drawn as without it; mask, info and sound are those of the clip."""
    with_sound = rendered(frames=30, audio="aac")
    plain, kept = fb.video("clip('random', 4, 2)", size=96, audio=True), stage(folder, audio=True)
    before = fb.counters()
    for epoch in range(4):
        for wanted, found in zip(run(plain, with_sound, CLIP), run(kept, with_sound, CLIP), strict=True):
            assert wanted.keys() == found.keys()
            assert all(numpy.array_equal(wanted[key], found[key]) for key in ("frames", "mask", "audio"))
            assert wanted["video"] == found["video"]
        if not epoch:
            fill(folder)
            told(folder)
    assert since(before) == {"hits": 6, "kept": 2}
    assert not waiting(folder)


def test_a_jpeg_is_near(folder: Path) -> None:
    """PSNR of 30 and more; it still says which frame it is."""
    (wanted,) = run(fb.video(size=96), CLIP)
    kept = stage(folder, 90, None)
    run(kept, CLIP)
    fill(folder)
    before = fb.counters()
    (found,) = run(kept, CLIP)
    assert since(before)["hits"] == 1
    error = ((found["frames"].astype("f4") - wanted["frames"]) ** 2).mean()
    assert 0 < error < 65.0
    assert [frame_number(one) for one in found["frames"]] == list(range(30))


def test_a_changed_clip_is_another(folder: Path) -> None:
    """Its bytes are what is looked up, whatever its name; and another size or quality are others."""
    kept = stage(folder)
    run(kept, CLIP)
    fill(folder)
    before = fb.counters()
    run(kept, OTHER)
    run(stage(folder, 50), CLIP)
    run(fb.video("uniform(2)", size=64, frames=fb.frames(folder=folder, quality=None)), CLIP)
    assert "hits" not in since(before)
    assert len(waiting(folder)) == 3


def test_a_damaged_frame_is_never_given(folder: Path) -> None:
    """But decoded and counted, and kept anew."""
    kept, plain = stage(folder, sampling="uniform(8)"), fb.video("uniform(8)", size=96)
    run(kept, CLIP)
    fill(folder)
    closed(opened_frames._OPEN.pop(str(folder.resolve())))
    (wanted,) = run(plain, CLIP)
    (path,) = folder.glob("*.mdb")
    data = bytearray(path.read_bytes())
    frame = wanted["frames"][3].tobytes()[:2000]
    places = [at for at in range(0, len(data), 16) if data[at : at + 2000] == frame]  # LMDB leaves copies in pages that are free again
    assert places
    for at in places:
        data[at + 1000] ^= 1
    path.write_bytes(data)
    before = fb.counters()
    assert numpy.array_equal(run(kept, CLIP)[0]["frames"], wanted["frames"])
    assert since(before)["damaged"] == 1
    assert "hits" not in since(before)
    fill(folder)
    assert numpy.array_equal(run(kept, CLIP)[0]["frames"], wanted["frames"])
    assert since(before)["hits"] == 1


def test_a_cut_file_is_repaired(folder: Path) -> None:
    """What lay behind the cut is decoded."""
    kept, plain = stage(folder, sampling=None), fb.video(size=96)
    run(kept, CLIP)
    fill(folder)
    closed(opened_frames._OPEN.pop(str(folder.resolve())))
    (path,) = folder.glob("*.mdb")
    os.truncate(path, path.stat().st_size // 2)
    assert numpy.array_equal(run(kept, CLIP)[0]["frames"], run(plain, CLIP)[0]["frames"])


def test_a_folder_of_something_else_is_refused(folder: Path) -> None:
    """Before a sample is asked for, so no handler passes it over; an LMDB of another version says what to do."""
    (folder / "mine").mkdir(parents=True)
    (folder / "mine" / "file").touch()
    with pytest.raises(MemoError, match=r"give fb\.frames\(…, folder=…\)"):
        run(stage(folder / "mine", handler=lambda _: True), CLIP)
    FrameStore(str(folder / "old"), SIZE).close()
    (path,) = (folder / "old").glob("*.mdb")
    path.write_bytes(b"\0" * 8192)
    with pytest.raises(MemoError, match="remove it"):
        run(stage(folder / "old"), CLIP)


def test_a_full_store_keeps_what_it_has(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It takes no more, and says so."""
    size = 2 << 20
    small = fb.video("uniform(2)", size=96, frames=fb.frames(folder=folder, size=size, quality=None))
    run(small, CLIP)
    fill(folder, size)
    big = fb.video("uniform(2)", frames=fb.frames(folder=folder, size=size, quality=None))
    before = fb.counters()
    run(big, rendered(frames=48))
    fill(folder, size)
    told(folder)
    run(small, CLIP)
    assert since(before) == {"hits": 1, "kept": 1, "dropped": 1}
    run(small, OTHER)
    run(small, OTHER)
    assert since(before) == {"hits": 1, "kept": 1, "dropped": 3, "off": 1}
    assert not waiting(folder)
    used = sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if not path.name.endswith("-lock"))
    assert used <= size
    os.utime(folder / "stopped", (0, 0))  # minutes later somebody may have made room
    run(small, OTHER)
    assert len(waiting(folder)) == 1


def test_what_waits_is_bounded(folder: Path) -> None:
    """A clip for which there is no room is not queued, and counted."""
    clip = b"x" * 1000
    there = Spool(str(folder), 2500)
    assert [there.offer(bytes([number]) * 20, {}, clip) for number in range(3)] == [True, True, False]
    assert spool_most(200 * 10**9) == 1 << 30


def test_what_was_torn_or_kills_is_dropped(folder: Path) -> None:
    """A clip that is cut; one that is not what its key says; one whose decoder ended its process three times."""
    kept = stage(folder)
    run(kept, CLIP, OTHER)
    one, other = waiting(folder)
    os.truncate(one, 3000)
    data = bytearray(other.read_bytes())
    data[-9] ^= 1
    other.write_bytes(data)
    before = fb.counters()
    fill(folder)
    told(folder)
    run(kept, OTHER)
    assert since(before) == {"dropped": 2}
    there = Spool(str(folder), 1 << 20)
    for _ in range(3):
        found, dropped = there.next()
        assert found is not None
        assert not dropped
    assert there.next() == (None, 1)


def test_a_bad_disk_ends_no_training(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that cannot be written and a store that cannot be read are given up, once."""
    kept = stage(folder)
    run(kept, CLIP)
    fill(folder)

    def fails(*_: Any) -> None:
        raise OSError(5, "Input/output error")

    before = fb.counters()
    monkeypatch.setattr(Spool, "offer", fails)
    run(kept, OTHER, CLIP)
    assert since(before) == {"dropped": 1, "off": 1, "hits": 1}
    monkeypatch.setattr(FrameStore, "frames", fails)
    assert len(run(kept, OTHER, CLIP)) == 2
    assert since(before)["hits"] == 1


def test_a_disk_on_which_nothing_can_be_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever fills says so, even where there is no room for the words; nothing is queued again and again."""
    kept = stage(folder)
    run(kept, CLIP)

    def fails(*_: Any) -> None:
        raise OSError("LMDB: mdb_txn_commit: Input/output error")

    monkeypatch.setattr(FrameStore, "keep", fails)
    before = fb.counters()
    fill(folder)
    assert not waiting(folder)
    os.truncate(folder / "stopped", 0)  # there was no room for the words
    run(kept, CLIP)
    run(kept, CLIP)
    assert since(before) == {"dropped": 2, "off": 1}


def test_the_memo_knows_of_jpegs() -> None:
    """Raw frames are those of the clip; where they lie does not matter."""
    of = repr
    raw, jpeg = (fb.video("uniform(2)", frames=fb.frames(folder="a", quality=one)) for one in (None, 90))
    assert raw.memo_print(of) == fb.video("uniform(2)").memo_print(of) != jpeg.memo_print(of)
    assert jpeg.memo_print(of) == fb.video("uniform(2)", frames=fb.frames(folder="b")).memo_print(of)


def test_clips_of_files_and_objects(folder: Path, tmp_path: Path, proxy: FakeServer) -> None:
    """These wait by their names, and are found by their version."""
    asked = fb.frames(folder=folder, size=SIZE)
    path = tmp_path / "a.mp4"
    path.write_bytes(CLIP)
    proxy.put("/s3/bucket/a.mp4", CLIP)
    clips = [FileClip(path), ObjectClip("s3://bucket/a.mp4")]
    for clip in clips:
        asked.find(clip, 96).decoded()
    assert sum(one.stat().st_size for one in waiting(folder)) < 1000
    fill(folder)
    wanted = source_of(CLIP, size=96).frames([3, 9])
    for clip in clips:
        found = asked.find(clip, 96).frames([3, 9])
        assert ((found.astype("f4") - wanted) ** 2).mean() < 65.0
        clip.close()
    state = path.stat()
    path.write_bytes(OTHER.ljust(state.st_size, b"\0")[: state.st_size])
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))  # as who copies with the times of what is copied
    proxy.put("/s3/bucket/a.mp4", OTHER)
    assert [asked.find(clip, 96).info for clip in clips] == [None, None]
    for clip in clips:
        clip.close()


def part(shard: str, etag: str, here: bool, clip: bytes = CLIP) -> MemberClip:
    """A clip in a shard that is ``here``, or else may not be read."""

    def read(at: int, size: int) -> bytes:
        assert here
        return clip[at : at + size]

    return MemberClip(read, len(clip), known=(shard, etag, 512), here=here)


def test_parts_of_shards(folder: Path) -> None:
    """Wait by their bytes while their shard is here, and are found by its version, without their bytes."""
    asked = fb.frames(folder=folder, size=SIZE, quality=None)
    before = fb.counters()
    asked.find(part("s3://b/0.tar", '"1"', here=False), 96).decoded()
    assert since(before) == {"dropped": 1}
    asked.find(part("s3://b/0.tar", '"1"', here=True), 96).decoded()
    fill(folder)
    found = asked.find(part("s3://b/0.tar", '"1"', here=False), 96)
    assert numpy.array_equal(found.frames([3, 9]), source_of(CLIP, size=96).frames([3, 9]))
    for shard, etag in (("s3://b/0.tar", '"2"'), ("s3://b/1.tar", '"1"'), ("s3://b/0.tar?endpoint=http://other", '"1"')):
        assert asked.find(part(shard, etag, here=False), 96).info is None
    assert asked.find(part("s3://b/0.tar", "", here=True), 96) is None


def test_what_a_signature_may_name(folder: Path) -> None:
    """Is known by its bytes where they are here, whatever the query says, and is not written down; else nobody knows it."""
    asked = fb.frames(folder=folder, size=SIZE, quality=None)
    asked.find(part("https://h/0.tar?sig=secret", '"1"', here=True), 96).decoded()
    assert b"secret" not in waiting(folder)[0].read_bytes()
    fill(folder)
    assert asked.find(part("https://h/0.tar?sig=other", '"2"', here=True), 96).info
    assert asked.find(part("https://h/0.tar?sig=secret", '"1"', here=True, clip=OTHER), 96).info is None
    assert asked.find(part("https://h/0.tar?sig=secret", '"1"', here=False), 96) is None


def named(*urls: Any) -> list[dict[str, Any]]:
    return [{"__key__": str(number), "__url__": "s3://b/list.tar", "url": url} for number, url in enumerate(urls)]


def test_clips_that_a_field_names(folder: Path, tmp_path: Path, proxy: FakeServer) -> None:
    """A file and an object, with their sound; and a table whose size is another than the stage's."""
    path = tmp_path / "a.mp4"
    path.write_bytes(rendered(frames=30, audio="aac"))
    proxy.put("/s3/bucket/a.mp4", CLIP)
    listed = named(str(path), "s3://bucket/a.mp4", {"url": str(path), "size": 48})
    plain, kept = fb.video("clip('random', 4, 2)", size=96, audio=True, source="url"), stage(folder, audio=True, source="url")
    before = fb.counters()
    for epoch in range(3):
        for wanted, found in zip(plain(iter(listed)), kept(iter(listed)), strict=True):
            assert all(numpy.array_equal(wanted[key], found[key]) for key in ("frames", "mask", "audio"))
            assert wanted["video"] == found["video"]
        if not epoch:
            fill(folder)
    assert since(before)["hits"] == 6


def test_a_memo_around_it(folder: Path, tmp_path: Path) -> None:
    """Keeps what came from either, and finds it without the kept frames."""

    def remembered(made: Any) -> list[Any]:
        found = run(fb.memo(folder=tmp_path / "memo", size="64MB")(made), CLIP, OTHER)
        assert opened_memo._OPEN[str(tmp_path / "memo")].writer.drained(20)
        return [(one["frames"].tobytes(), one["video"]) for one in found]

    wanted = [(one["frames"].tobytes(), one["video"]) for one in run(fb.video("uniform(4)", size=96), CLIP, OTHER)]
    run(stage(folder, sampling="uniform(4)"), CLIP)
    fill(folder)
    before = fb.counters()
    assert remembered(stage(folder, sampling="uniform(4)")) == wanted
    assert remembered(fb.video("uniform(4)", size=96)) == wanted
    assert since(before) == {"hits": 1}
    assert fb.counters()["memo_hits"] - before["memo_hits"] == 2


def test_it_is_resumed_exactly(folder: Path, proxy: FakeServer) -> None:
    """Though the clips of the stopped run were decoded, and those of the resumed one are kept."""
    wds = pytest.importorskip("webdataset")
    proxy.put("/s3/bucket/0.tar", shard_of_samples(*[{"mp4": clip} for clip in (CLIP, OTHER, CLIP, OTHER)]))

    def dataset() -> Any:
        return fb.WebDataset("s3://bucket/0.tar", nodesplitter=wds.split_by_node).compose(stage(folder))

    def told(found: Any) -> list[tuple[str, bytes]]:
        return [(one["__key__"], one["frames"].tobytes()) for one in found]

    whole = told(dataset())
    stopped = dataset()
    reading = iter(stopped)
    begun = told(next(reading) for _ in range(2))
    fill(folder)
    resumed = dataset()
    resumed.load_state_dict(stopped.state_dict())
    before = fb.counters()
    assert begun + told(resumed) == whole
    assert since(before)["hits"] == 2


@pytest.mark.parametrize(("given", "error"), [(0, ValueError), (101, ValueError), ("90", TypeError), (True, TypeError)])
def test_a_quality_that_is_none(given: Any, error: type[Exception]) -> None:
    """1 to 100."""
    with pytest.raises(error, match="quality takes"):
        fb.frames(quality=given)


def test_it_pickles() -> None:
    """To spawned workers."""
    asked = fb.frames(folder="a")
    assert pickle.loads(pickle.dumps(asked)).folder == asked.folder


# Real processes.
TRAINER = """
import json, sys, time
import forebay_loader as fb
folder, clips, seconds = sys.argv[1], [open(path, "rb").read() for path in sys.argv[3:]], float(sys.argv[2])
stage = fb.video("clip('random', 4, 2)", size=96, frames=fb.frames(folder=folder, size=64 << 20, quality=None))
end = time.monotonic() + seconds
while time.monotonic() < end:
    list(stage({"__key__": str(n), "__url__": "s3://b/0.tar", "mp4": clip} for n, clip in enumerate(clips)))
    print(json.dumps({n: c for n, c in fb.counters().items() if n.startswith("frames_")}), flush=True)
    if fb.counters()["frames_kept"] >= len(clips):
        break
    if fb.counters()["frames_off"]:
        break
    time.sleep(0.3)
"""


def trainer(folder: Path, seconds: float, *clips: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", TRAINER, str(folder), str(seconds), *map(str, clips)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def environment() -> dict[str, str]:
    path = os.pathsep.join(str(Path(__file__).parents[4] / part) for part in ("loader", "proxy"))
    return {**os.environ, "PYTHONPATH": path}


def filler_of(folder: Path) -> int:
    """The process that fills the folder; 0 without one."""
    for one in Path("/proc").iterdir():
        try:
            words = (one / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"forebay_loader.memos.frames.filler" in words and os.fsencode(folder.resolve()) in words:
            return int(one.name)
    return 0


def until(told: Callable[[], Any], seconds: float = 60.0) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = told()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError("it did not come")


def alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_filler_that_is_killed_has_a_successor(folder: Path, tmp_path: Path) -> None:
    """As soon as a clip is missed again, and what waited is kept."""
    paths = []
    for number, clip in enumerate((CLIP, OTHER)):
        paths.append(tmp_path / f"{number}.mp4")
        paths[-1].write_bytes(clip)
    with trainer(folder, 90.0, *paths) as process:
        first = until(lambda: filler_of(folder))
        os.kill(first, signal.SIGKILL)
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
    assert json.loads(lines[-1])["frames_kept"] in (2, 3), lines[-1]  # what the first had kept, and not said so yet, is kept again
    second = filler_of(folder)
    assert second != first
    if second:  # it sees for some seconds whether another trainer comes
        assert os.getsid(second) == second
        assert os.getpriority(os.PRIO_PROCESS, second) == 19
    before = fb.counters()
    run(stage(folder), CLIP, OTHER)
    assert since(before) == {"hits": 2}


@pytest.mark.skipif(not LONG, reason="a filler ends five seconds behind its trainers; scripts/test --long waits for it")
def test_a_trainer_that_is_killed_leaves_what_waits(folder: Path, tmp_path: Path) -> None:
    """The filler ends behind it, and what it had not done the next one does."""
    path = tmp_path / "0.mp4"
    path.write_bytes(rendered(frames=480, width=256, height=192))
    with trainer(folder, 90.0, path) as process:
        first = until(lambda: filler_of(folder))
        os.kill(first, signal.SIGSTOP)
        process.kill()
    os.kill(first, signal.SIGCONT)
    until(lambda: not alive(first))
    fill(folder)
    assert not waiting(folder)
    before = fb.counters()
    run(stage(folder), path.read_bytes())
    assert since(before)["hits"] == 1


@pytest.mark.skipif(not LONG or not can_mount(), reason="a disk of its own, and a filler; scripts/test --long has both")
def test_a_disk_that_fills_up_ends_no_training(tmp_path: Path) -> None:
    """Whoever notices first says so: the filler, by the folder, or the trainer, whose clip cannot wait there."""
    path = tmp_path / "0.mp4"
    path.write_bytes(rendered(frames=480, width=256, height=192))
    (tmp_path / "disk").mkdir()
    mount = 'mount -t tmpfs -o size=1m,mode=700 none "$0" && exec "$@"'
    command = [
        "unshare",
        "-m",
        "sh",
        "-c",
        mount,
        str(tmp_path / "disk"),
        sys.executable,
        "-c",
        TRAINER,
        str(tmp_path / "disk" / "f"),
        "90",
    ]
    done = subprocess.run([*command, str(path)], capture_output=True, text=True, check=False, env=environment(), timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["frames_off"] == 1
    assert re.search("is full|No space left|Input/output error", done.stderr)


@pytest.mark.skipif(not LONG, reason="two trainers; scripts/test --long starts them")
def test_two_jobs_share_a_folder(folder: Path, tmp_path: Path) -> None:
    """And the process that fills it."""
    paths = []
    for number, clip in enumerate((CLIP, OTHER)):
        paths.append(tmp_path / f"{number}.mp4")
        paths[-1].write_bytes(clip)
    with trainer(folder, 20.0, *paths) as one, trainer(folder, 20.0, *paths) as other:
        told = [process.communicate()[0].splitlines()[-1] for process in (one, other)]
    assert sum(json.loads(line)["frames_kept"] for line in told) == 2


@pytest.mark.parametrize(
    "how",
    [
        "fork",
        pytest.param("spawn", marks=pytest.mark.skipif(not LONG, reason="spawned workers import torch; scripts/test --long starts them")),
    ],
)
def test_workers_share_it(folder: Path, how: str) -> None:
    """And their counts are those of their training process."""
    torch_data = pytest.importorskip("torch.utils.data")
    run(stage(folder), CLIP)
    fill(folder)
    before = fb.counters()
    wds = pytest.importorskip("webdataset")
    pipeline = wds.DataPipeline(Repeated(CLIP), stage(folder))
    loader = torch_data.DataLoader(pipeline, batch_size=None, num_workers=2, multiprocessing_context=how)
    assert len(list(loader)) == 4
    assert since(before)["hits"] == 4


class Repeated:
    def __init__(self, clip: bytes) -> None:
        self.clip = clip

    def __call__(self) -> Iterator[dict[str, Any]]:
        return iter(samples(self.clip, self.clip))
