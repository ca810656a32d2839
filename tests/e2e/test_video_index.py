"""``forebay index --video`` with a real sidecar: a table of real clips in tars and of clips that lie alone; gone on with; broken ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.clips import rendered
from support.sidecar import Sidecar, environment, forebay, running, small_segments, wait_until
from support.tarmaking import written

import forebay_loader as fb
from forebay_loader.base.counters import COUNTS
from forebay_loader.samples.shard_name import shard_name
from forebay_loader.videos.metadata.clip_table import ClipTable
from forebay_loader.videos.metadata.record import clip_name

SEGMENT = 1 << 16


@pytest.fixture
def films(place: Path) -> Path:
    """Two tars of three clips each, other frames in each; the last of the second is cut, and one has a suffix in capitals. Beside them a
    clip that lies alone."""
    found = place / "films"
    found.mkdir()
    for shard in range(2):
        entries: list[tuple[str, bytes]] = []
        for number in range(3):
            clip = rendered(frames=20 + 3 * shard + number, audio="aac" if number else "")
            suffix = "MP4" if (shard, number) == (0, 1) else "mp4"
            entries += [(f"{number}.{suffix}", clip[: 900 if (shard, number) == (1, 2) else None]), (f"{number}.json", b"{}")]
        (found / f"{shard}.tar").write_bytes(written(entries, tarfile.USTAR_FORMAT))
    (found / "alone.webm").write_bytes(rendered(codec="libvpx-vp9", container="webm", frames=30))
    return found


@pytest.fixture
def sidecar(place: Path, films: Path) -> Iterator[Sidecar]:
    with running(place, "--cache-size", "100MB", "--file-root", str(films), program=small_segments(SEGMENT)) as found:
        yield found


def test_a_table_of_all_clips(sidecar: Sidecar, films: Path, place: Path) -> None:
    """Counted and scanned in one go; what cannot be read is named, and the exit code says so."""
    table = place / "films.clips"
    arguments = ("index", f"file://{films}/{{0..1}}.tar", f"file://{films}/alone.webm", "--url", sidecar.url, "--video", str(table))
    done = forebay(place, *arguments)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines() == [
        "6 samples in 2 shards (3 to 3 each); sizes.json written",
        f"6 clips scanned, 1 cannot be read; {table} written",
    ]
    assert f"file://{films}/1.tar/2.mp4: 2.mp4 in file://{films}/1.tar: " in done.stderr
    assert set(json.loads((place / "sizes.json").read_text())) == {"0.tar", "1.tar"}
    found = ClipTable(table)
    frames = {}
    for shard in range(2):
        for number in range(3):
            info = found.find(clip_name(shard_name(f"file://{films}/{shard}.tar"), f"{number}.mp4"))
            frames[shard, number] = info and info.frames
            assert info is None or (len(info.motion or ()), info.audio_energy is not None) == (32, number > 0)
    assert frames == {(0, 0): 20, (0, 1): 21, (0, 2): 22, (1, 0): 23, (1, 1): 24, (1, 2): None}
    alone = found.find(f"file://{films}/alone.webm", (films / "alone.webm").stat().st_size)
    assert alone is not None
    assert (alone.frames, alone.width) == (30, 128)
    again = forebay(place, *arguments, "--json")
    last = json.loads(again.stdout.splitlines()[-1])
    assert (last["event"], last["scanned"], last["known"], last["failed"]) == ("clips", 0, 6, 1)


@pytest.mark.usefixtures("fresh_loader")
def test_loose_clips(sidecar: Sidecar, films: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their paths and from a list; the table is listed; ``fb.Clips`` knows them by path and by URL, and looks at none again."""
    monkeypatch.setenv("FOREBAY_URL", sidecar.url)
    (films / "b.mp4").write_bytes(rendered(frames=20, audio="aac"))
    (place / "list.txt").write_text(f"file://{films}/b.mp4\n")
    arguments = ("index", str(films / "alone.webm"), "--from", "list.txt", "--url", sidecar.url, "--video", "films.clips")
    done = forebay(place, *arguments)
    assert (done.returncode, done.stdout) == (0, "2 clips scanned; films.clips written\n"), done.stderr
    listed = forebay(place, "index", "--video", "films.clips", "--list", "--json").stdout.splitlines()
    names = ("clip", "frames", "seconds", "size", "keyframes")
    assert [tuple(json.loads(line)[name] for name in names) for line in listed] == [
        (f"file://{films}/alone.webm", 30, 1.249, "128x96", 3),
        (f"file://{films}/b.mp4", 20, 0.833, "128x96", 2),
    ]
    assert [json.loads(line)["loudness"] is None for line in listed] == [True, False]
    assert forebay(place, "index", "--list").returncode == 2
    COUNTS.reset()
    clips = fb.Clips([f"{films}/alone.webm", f"file://{films}/b.mp4"], video=fb.video("adaptive(2)", metadata=place / "films.clips"))
    assert [one["video"].frames for one in clips] == [30, 20]
    assert COUNTS.snapshot()["video_scanned"] == 0


@pytest.mark.webdataset
@pytest.mark.usefixtures("fresh_loader")
def test_what_was_scanned_is_known_however_a_shard_is_opened(
    sidecar: Sidecar, films: Path, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its URL or by a command that prints it; as a stage, as a decoder, and by number: no clip is looked at again."""
    monkeypatch.setenv("FOREBAY_URL", sidecar.url)
    shard = f"file://{films}/0.tar"
    assert forebay(place, "index", shard, "--url", sidecar.url, "--video", "set.clips").returncode == 0
    video = fb.video("adaptive(4)", metadata=place / "set.clips")
    for url in (shard, f"pipe:cat {films}/0.tar"):
        assert len(list(fb.WebDataset(url).compose(video))) == 3
        assert [len(frames) for ((frames, _, _),) in fb.WebDataset(url).decode(video).to_tuple("mp4")] == [4] * 3
    clips = fb.IndexedShards(shard, video=video)
    assert [len(clips[number]["video"].motion) for number in range(3)] == [32] * 3
    clips.close()
    assert fb.counters()["video_scanned"] == 0


def test_a_clip_that_kills_its_decoder_is_passed_over(sidecar: Sidecar, films: Path, place: Path) -> None:
    """It is named, with the signal, and the others are scanned; the next scan leaves it alone, until it is asked for it."""
    clip = rendered(frames=200, gop=200)
    (films / "long.tar").write_bytes(written([(f"{number}.mp4", clip) for number in range(8)], tarfile.USTAR_FORMAT))
    arguments = ("index", f"file://{films}/long.tar", "--url", sidecar.url, "--video", "a.clips", "--json")
    command = [sys.executable, "-m", "forebay_proxy", *arguments]
    with subprocess.Popen(command, cwd=place, env=environment(place), stdout=subprocess.PIPE) as scan:
        os.kill(wait_until(lambda: decoder_of(scan.pid)), signal.SIGSEGV)
        assert scan.stdout is not None
        last = json.loads(scan.stdout.read().splitlines()[-1])
    assert (last["scanned"], last["failed"]) == (7, 1)
    assert "the decoder's process died, signal 11" in (place / "a.clips.deaths").read_text()
    for scanned, failed in ((0, 1), (1, 0)):
        last = json.loads(forebay(place, *arguments).stdout.splitlines()[-1])
        assert (last["scanned"], last["known"], last["failed"]) == (scanned, 7, failed)
        (place / "a.clips.deaths").unlink(missing_ok=True)


def decoder_of(command: int) -> int:
    """A process that decodes for ``command``, 0 while there is none: the scan's server forks it."""
    below = [command]
    for _ in range(3):
        lists = [children for pid in below for children in Path(f"/proc/{pid}/task").glob("*/children")]  # a thread's own each
        below = [int(child) for children in lists for child in children.read_text().split()]
    return below[0] if below else 0


def test_a_shard_that_left_before_its_turn_is_scanned_all_the_same(sidecar: Sidecar, films: Path, place: Path) -> None:
    """Counted shards leave for the others, perhaps before the scan comes to them: their clips are fetched once more, and all are known."""
    shards = f"file://{films}/{{0..1}}.tar"
    assert forebay(place, "index", shards, "--url", sidecar.url).returncode == 0
    assert forebay(place, "evict", f"file://{films}/*", "--url", sidecar.url).returncode == 0
    assert not any(shard["stored_bytes"] for shard in sidecar.shards().values())
    done = forebay(place, "index", shards, "--url", sidecar.url, "--video", "a.clips")
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[-1] == "5 clips scanned, 1 cannot be read; a.clips written"


def test_killed_on_its_way_it_goes_on(sidecar: Sidecar, films: Path, place: Path) -> None:
    """With ``kill -9``, it and its scan: what was written until then is known. Then come the others."""
    clip = rendered(frames=200, gop=200)
    (films / "long.tar").write_bytes(written([(f"{number}.mp4", clip) for number in range(40)], tarfile.USTAR_FORMAT))
    arguments = ("index", f"file://{films}/long.tar", "--url", sidecar.url, "--video", "a.clips", "--json")
    table = ClipTable(place / "a.clips")
    command = [sys.executable, "-m", "forebay_proxy", *arguments]
    with subprocess.Popen(command, cwd=place, env=environment(place), stdout=subprocess.DEVNULL, start_new_session=True) as running_one:
        while not known_in(table):
            assert running_one.poll() is None
            time.sleep(0.005)
        os.killpg(running_one.pid, signal.SIGKILL)
    assert 0 < known_in(table) < 40
    last = json.loads(forebay(place, *arguments).stdout.splitlines()[-1])
    assert last["known"] > 0
    assert (last["known"] + last["scanned"], last["failed"]) == (40, 0)
    assert len(table) == 40
    assert not list(place.glob("a.clips?*"))


def known_in(table: ClipTable) -> int:
    with suppress(FileNotFoundError):
        return len(table)
    return 0
