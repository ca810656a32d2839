"""Clips through a real sidecar: the code of others unchanged, random access, and what travels from a shard that is not here."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from support import torch_video_train
from support.clips import frame_number, pictures_of, rendered
from support.fake_proxy import FakeServer
from support.lengths import ordinarily
from support.other_python import clean_environment, other_python
from support.sidecar import Sidecar, running, small_segments, wait_until
from support.tarmaking import numbered_clips

import forebay_loader as fb
from forebay_loader.base.errors import ShardChanged
from forebay_loader.videos.sampling import sampler_of
from forebay_loader.videos.sources.choice import source_of
from forebay_loader.videos.sources.clip_bytes import ObjectClip

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

from video_clips import clip as noisy_clip

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("fresh_loader")

SHARDS, CLIPS = 8, 3
RANKS = ordinarily(1, of=2, what="ranks of a training that is the code of others")  # each imports torch
SEGMENT = 1 << 11
ROOT = Path(__file__).parents[2]
FOREBAY = f"import sys; sys.path[:0] = {[str(ROOT / 'proxy'), str(ROOT / 'loader')]!r}; from forebay_proxy.cli.main import main; main()"
STEP_S = ordinarily(0.0, of=0.25, what="seconds that a step of unchanged code takes")
LONG = {"frames": 300, "gop": 10, "width": 320, "height": 240, "audio": "aac"}


@pytest.fixture
def shards(place: Path) -> Path:
    """Shards of three clips of three seconds, and one of two long clips."""
    found = place / "shards"
    found.mkdir()
    clip = rendered(frames=24, audio="aac")
    for shard in range(SHARDS):
        (found / f"{shard:03}.tar").write_bytes(numbered_clips([clip] * CLIPS, shard * CLIPS))
    (found / "long.tar").write_bytes(numbered_clips([rendered(**LONG)] * 2))
    return found


@pytest.fixture
def sidecar(place: Path, shards: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sidecar]:
    flags = ["--cache-size", "200MB", "--file-root", str(shards), "--socket", str(place / "s")]
    with running(place, *flags, program=small_segments(SEGMENT)) as found:
        monkeypatch.setenv("FOREBAY_SOCKET", str(place / "s"))
        yield found


def fetched(sidecar: Sidecar, *shards: Path) -> None:
    for shard in shards:
        sidecar.ask(f"/file{shard}")
    wait_until(lambda: {f"file://{shard}" for shard in shards} <= {name for name, one in sidecar.shards().items() if one["complete"]})


@pytest.mark.once  # that both versions have our decoder is told by loader/takeover/test_hook.py
def test_the_code_of_others_runs_unchanged(place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Ranks of two workers, webdataset's own decoding on a torchvision that has none: every clip once, ranges in its profile.

    In a long run, where nothing runs beside it, no rank waits for as much as a tenth of its time.
    """
    python = other_python(tmp_path_factory.mktemp("training") / "venv", without=("torchvision",))
    clip = rendered(frames=24, audio="aac")
    with FakeServer().running() as origin:
        for shard in range(SHARDS):
            origin.put(f"/train-{shard:03}.tar", numbered_clips([clip] * CLIPS, shard * CLIPS))
        urls = f"{origin.url}/train-{{000..{SHARDS - 1:03}}}.tar"
        training = f"{python} {torch_video_train.__file__} '{urls}' {STEP_S}"
        ranks = " & ".join(f"RANK={rank} WORLD_SIZE={RANKS} {training} > {place}/{rank}" for rank in range(RANKS))
        with running(place, "--cache-size", "200MB", allow=[origin.url]) as sidecar:
            environ = clean_environment(place / "run", FOREBAY_URL=sidecar.url)
            argv = [sys.executable, "-P", "-c", FOREBAY, "run", "--", "sh", "-c", f"{ranks} & wait"]
            done = subprocess.run(argv, env=environ, cwd=place, capture_output=True, text=True, timeout=240, check=False)
        assert "0 went direct" in done.stderr, done.stderr[-3000:]
    found = [json.loads((place / str(rank)).read_text()) for rank in range(RANKS)]
    assert sorted(number for one in found for number in one["labels"]) == list(range(SHARDS * CLIPS))
    for one in found:
        assert one["frames"] == [24, 96, 128, 3]
        assert one["audio"] == [1, 48_000]
        assert one["info"] == {"video_fps": 24.0, "audio_fps": 48_000}
        assert not STEP_S or one["busy"] > 0.9
        assert {"forebay.video", "forebay.video.index", "forebay.video.decode", "forebay.video.audio"} <= set(one["profiled"])


class Clips(torch.utils.data.Dataset):  # type: ignore[misc, name-defined]
    """A map-style data set as its author had it: frames, their changes, sound and label of a number."""

    def __init__(self, clips: Any) -> None:
        self.clips = clips

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, number: int) -> tuple[Any, Any, Any, int]:
        sample = self.clips[number]
        frames = sample["frames"]
        return frames, numpy.diff(frames.astype(numpy.int16), axis=0), sample["audio"], json.loads(sample["json"])["number"]


def test_random_access_gives_frames_sound_and_label(sidecar: Sidecar, shards: Path) -> None:
    """In batches of torch's own collation, by a sampler that shares the numbers out to two ranks: each sample in one of them, anew in
    each epoch."""
    paths = [shards / f"{number:03}.tar" for number in range(4)]
    fetched(sidecar, *paths)
    epoch = multiprocessing.get_context("spawn").Value("i", 0)
    drawn = fb.video("clip('random', 6)", size=48, audio=16_000, epoch=epoch)
    clips = Clips(fb.IndexedShards([f"file://{path}" for path in paths], video=drawn))
    assert len(clips) == 12
    firsts = []
    for epoch.value in range(2):
        labels = []
        for rank in range(2):
            share = torch.utils.data.DistributedSampler(clips, num_replicas=2, rank=rank, shuffle=True, seed=3)
            share.set_epoch(epoch.value)
            for frames, changes, audio, label in torch.utils.data.DataLoader(clips, batch_size=3, sampler=share, num_workers=1):
                assert (frames.shape, frames.dtype) == ((3, 6, 48, 64, 3), torch.uint8)
                assert (changes.shape, changes.dtype) == ((3, 5, 48, 64, 3), torch.int16)
                assert (audio.shape, audio.dtype) == ((3, 1, 4000), torch.float32)
                labels += label.tolist()
        assert sorted(labels) == list(range(12))
        firsts.append([clips[number][0].tobytes() for number in range(12)])
    assert firsts[0] != firsts[1]
    clips.clips.close()


def evicted(sidecar: Sidecar) -> bool:
    """Asked again while a lease that was ended is still in the books."""
    sidecar.ask("/v1/evict", b'{"all": true}')
    return not sidecar.shards()


def span_bytes(asked: str) -> int:
    """``bytes=7-9`` is three."""
    first, last = asked.removeprefix("bytes=").split("-")
    return int(last) - int(first) + 1


def test_eight_of_three_hundred_frames_move_a_quarter_of_a_lone_clip(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it lies in one segment, of which the origin is asked for no more. Nothing of it is kept, and the frames are right; as they are
    of its file, once all of it is here."""
    clip = noisy_clip(3, 300, 320, 180, gop=10)  # of 3 MB: of one that a request or two bring, all of it comes
    flags = ["--cache-size", "200MB", "--socket", str(place / "s")]
    with FakeServer().running() as origin, running(place, *flags, allow=[origin.url]) as sidecar:
        monkeypatch.setenv("FOREBAY_URL", sidecar.url)
        origin.put("/long.mp4", clip)
        url = f"{origin.url}/long.mp4"
        with source_of(url) as source:
            frames = sampler_of("uniform(8)")(source.open(), 0).frames
            found = source.frames(frames)
        sent = sum(span_bytes(asked.headers["Range"]) for asked in origin.asked("/long.mp4"))
        assert 0 < sent <= 0.25 * len(clip), f"{sent} of {len(clip)}"
        assert numpy.array_equal(found, numpy.stack([pictures_of(clip)[number] for number in frames]))
        wait_until(lambda: not sidecar.status()["cache"]["in_flight"])
        assert not sidecar.shards()
        assert sidecar.status()["requests"]["relayed"] > 0
        whole = ObjectClip(url)  # all of it: as ever
        assert bytes(whole.read(0, whole.open())) == clip
        whole.close()
        wait_until(lambda: sidecar.shards()[url]["complete"])
        with source_of(url) as source:  # by now from its file, whose descriptor is leased
            assert numpy.array_equal(source.frames(frames), found)
            assert fb.counters()["opened_descriptor"] == 1


def test_announced_clips_are_fetched_ahead(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a list of clips, with ``fb.ahead()``: each is fetched once, the others while the first is with its reader. Without it few frames
    move few bytes."""
    wds = pytest.importorskip("webdataset")
    clip = noisy_clip(3, 300, 320, 180, gop=10)
    with FakeServer().running() as origin, running(place, "--cache-size", "200MB", allow=[origin.url]) as sidecar:
        monkeypatch.setenv("FOREBAY_URL", sidecar.url)
        for number in range(4):
            origin.put(f"/{number}.mp4", clip)
        urls = [f"{origin.url}/{number}.mp4" for number in range(4)]
        stage = fb.video("uniform(8)", source="url")
        (cold,) = wds.DataPipeline(wds.SimpleShardList(urls[:1]), stage)
        assert 0 < sum(span_bytes(asked.headers["Range"]) for asked in origin.asked("/0.mp4")) <= 0.25 * len(clip)
        assert not sidecar.shards()
        reading = iter(wds.DataPipeline(wds.SimpleShardList(urls[1:]), wds.split_by_worker, fb.ahead(), stage))
        found = [next(reading)]
        wait_until(lambda: {url for url, one in sidecar.shards().items() if one["complete"]} == set(urls[1:]))
        before = len(origin.requests)
        found += reading
        assert len(origin.requests) == before
        assert [one["url"] for one in found] == urls[1:]
        assert all(numpy.array_equal(one["frames"], cold["frames"]) for one in found)


def test_an_object_that_was_replaced_between_two_parts_is_an_error(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is here to go on with."""
    with FakeServer().running() as origin, running(place, "--cache-size", "200MB", allow=[origin.url]) as sidecar:
        monkeypatch.setenv("FOREBAY_URL", sidecar.url)
        origin.put("/a.mp4", bytes(range(256)) * 8000)
        clip = ObjectClip(f"{origin.url}/a.mp4")
        assert (clip.open(), bytes(clip.read(1000, 4))) == (2_048_000, b"\xe8\xe9\xea\xeb")
        origin.put("/a.mp4", bytes(reversed(range(256))) * 8000)
        with pytest.raises(ShardChanged):
            clip.read(500_000, 10)
        clip.close()


def test_only_what_is_sampled_travels_from_a_cold_shard(sidecar: Sidecar, shards: Path) -> None:
    """Eight of 300 frames where each tenth is a keyframe: a quarter of the clip's bytes at most."""
    path = shards / "long.tar"
    fetched(sidecar, path)
    url = f"file://{path}"
    clips = fb.IndexedShards(url, video=fb.video("keyframes(8)"))
    warm = clips[1]["frames"]
    clips.close()
    wait_until(lambda: evicted(sidecar))
    before = sidecar.metric("forebay_origin_bytes_total")
    cold = fb.IndexedShards(url, video=fb.video("keyframes(8)"))
    found = cold[1]
    assert numpy.array_equal(found["frames"], warm)
    assert len({frame_number(picture) for picture in found["frames"]}) == 8
    wait_until(lambda: not sidecar.status()["cache"]["in_flight"])
    assert 0 < sidecar.metric("forebay_origin_bytes_total") - before <= 0.25 * len(rendered(**LONG))
    cold.close()


def test_kept_frames_of_a_shard_that_has_left_the_cache(sidecar: Sidecar, shards: Path, place: Path) -> None:
    """By number: nothing travels but the segment of the sample's label."""
    pytest.importorskip("lmdb")
    path = shards / "000.tar"
    fetched(sidecar, path)
    video = fb.video("uniform(4)", size=48, frames=fb.frames(folder=place / "frames", size="64MB", quality=None))
    clips = fb.IndexedShards(f"file://{path}", video=video)
    before = fb.counters()
    wanted = clips[1]["frames"]
    wait_until(lambda: bool(len(clips[1]["frames"])) and fb.counters()["frames_hits"] > before["frames_hits"], 60)
    clips.close()
    wait_until(lambda: evicted(sidecar))
    bytes_before, hits = sidecar.metric("forebay_origin_bytes_total"), fb.counters()["frames_hits"]
    cold = fb.IndexedShards(f"file://{path}", video=video)
    assert numpy.array_equal(cold[1]["frames"], wanted)
    assert fb.counters()["frames_hits"] == hits + 1
    assert sidecar.metric("forebay_origin_bytes_total") - bytes_before <= SEGMENT
    cold.close()
