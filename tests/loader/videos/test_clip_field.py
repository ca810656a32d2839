"""``fb.video(source=…)``: the clip is what a field of the sample names, and all else is as for a member."""

from __future__ import annotations

import json
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from support.clips import frame_number, rendered
from support.fake_proxy import FakeServer
from support.mp4_boxes import places
from support.tarmaking import shard_of_samples

import forebay_loader as fb
from forebay_loader.base.counters import COUNTS
from forebay_loader.memos import opened_memo
from forebay_loader.videos.errors import CorruptVideo, MissingVideo, UnsupportedVideo, VideoError, VideoTimeout

wds = pytest.importorskip("webdataset")

CLIP = rendered(audio="aac")
LIST = "s3://bucket/list.tar"


@pytest.fixture
def clips(tmp_path: Path) -> list[str]:
    """Four files of the same clip."""
    paths = [tmp_path / f"{number}.mp4" for number in range(4)]
    for path in paths:
        path.write_bytes(CLIP)
    return [str(path) for path in paths]


def run(stage: Any, *urls: Any) -> list[dict[str, Any]]:
    return list(stage(iter([{"__key__": f"{number}", "__url__": LIST, "url": url, "cls": number} for number, url in enumerate(urls)])))


@pytest.mark.parametrize("kind", ["path", "PathLike", "file URL", "s3", "https", "table", "json.url"])
def test_what_a_field_may_name(kind: str, clips: list[str], proxy: FakeServer) -> None:
    """The arrays are those of a member's bytes, and the field stays."""
    for target in ("/s3/bucket/a.mp4", "/https/host/a.mp4", f"/file{clips[0]}"):
        proxy.put(target, CLIP)
    url: Any = {
        "path": clips[0], "PathLike": Path(clips[0]), "file URL": f"file://{clips[0]}", "s3": "s3://bucket/a.mp4",
        "https": "https://host/a.mp4", "table": {"url": clips[0], "threads": 2}, "json.url": clips[0],
    }[kind]  # fmt: skip
    sample: dict[str, Any] = {"__key__": "a", "__url__": LIST, "mp4": b"left alone", "url": url}
    if kind == "json.url":
        sample["json"] = {"url": sample.pop("url")}
    (found,) = fb.video("uniform(8)", 48, audio=16_000, source="json.url" if kind == "json.url" else "url")([sample])
    (wanted,) = fb.video("uniform(8)", 48, audio=16_000)([{"__key__": "a", "__url__": LIST, "mp4": CLIP}])
    assert set(found) == {*sample, "frames", "mask", "video", "audio", "audio_rate_hz"}
    assert all(found[key] is value for key, value in sample.items())
    assert all(numpy.array_equal(found[key], wanted[key]) for key in ("frames", "mask", "audio"))
    assert (found["video"], found["audio_rate_hz"]) == (wanted["video"], 16_000)


def test_frames_decoded_before(tmp_path: Path) -> None:
    """An LMDB is a source as any."""
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(tmp_path / "base")) as base, base.begin(write=True) as transaction:
        transaction.put(b"a/0", b"\x89PNG no picture")
    with pytest.raises(CorruptVideo, match=r"^lmdb://\S+\?clip=a in s3://bucket/list\.tar: frame 0"):
        run(fb.video("uniform(2)", source="url"), f"lmdb://{tmp_path}/base?clip=a")


def deleted(path: Path) -> None:
    path.unlink()


def a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def truncated(path: Path) -> None:
    path.write_bytes(CLIP[: len(CLIP) // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def absurd(path: Path) -> None:
    """2^63 as the size of a box."""
    at = places(CLIP, b"moov")[0][0]
    path.write_bytes(CLIP[:at] + struct.pack(">I4sQ", 1, b"moov", 1 << 63) + CLIP[at + 8 :])


@pytest.mark.parametrize(
    ("harm", "error"),
    [
        (deleted, MissingVideo), (a_directory, MissingVideo), (truncated, VideoError), (emptied, VideoError), (absurd, VideoError),
        (a_pipe, OSError),
    ],
)  # fmt: skip
def test_a_clip_that_is_harmed_between_two_epochs(clips: list[str], harm: Callable[[Path], None], error: type[Exception]) -> None:
    """An error that names it and the list; with ``replace_corrupt`` its place is taken, and what is no regular file is never waited for."""
    stage = fb.video("uniform(2)", source="url")
    assert len(run(stage, *clips)) == 4
    harm(Path(clips[2]))
    with pytest.raises(error, match=r"/2\.mp4") as caught:
        run(stage, *clips)
    if error is OSError:
        return
    assert str(caught.value).startswith(f"{clips[2]} in {LIST}: ")
    found = run(fb.video("uniform(2)", source="url", replace_corrupt=True), *clips)
    assert [(one["__key__"], one["__corrupt__"]) for one in found] == [("0", ""), ("1", ""), ("1", "2"), ("3", "")]
    assert len(run(fb.video("uniform(2)", source="url", handler=lambda _: True), *clips)) == 3


@pytest.mark.parametrize("how", [{}, {"moov_first": True}, {"fragmented": True}], ids=["moov last", "moov first", "fragmented"])
@pytest.mark.parametrize("reached", ["file", "sidecar"])
def test_a_clip_that_was_cut(how: dict[str, bool], reached: str, tmp_path: Path, proxy: FakeServer) -> None:
    """Wherever, and by whatever way it comes: never a shorter clip."""
    data = rendered(**how, audio="aac")
    for share in (0.001, 0.1, 0.5, 0.9, 0.999):
        cut = data[: int(len(data) * share)]
        (tmp_path / "a.mp4").write_bytes(cut)
        proxy.put("/s3/bucket/a.mp4", cut)
        with pytest.raises(VideoError, match=r"/a\.mp4 in s3://bucket/list\.tar: "):
            run(fb.video(source="url"), str(tmp_path / "a.mp4") if reached == "file" else "s3://bucket/a.mp4")


def test_a_clip_that_changed_is_another(clips: list[str]) -> None:
    """Nothing of the epoch before is kept."""
    stage = fb.video("keyframes(1)", source="url")
    assert run(stage, clips[0])[0]["video"].frames == 48
    Path(clips[0]).write_bytes(rendered(frames=12))
    assert run(stage, clips[0])[0]["video"].frames == 12


@pytest.mark.parametrize(
    ("url", "match"),
    [
        (7, "names no clip"), (None, "names no clip"), ("", "names no clip"), (b"a.mp4", "names no clip"), ("a\0.mp4", "names no clip"),
        ({"urls": "a"}, "names no clip"), ({"url": "a.mp4", "sise": 3}, "sise"), ("ftp://host/a.mp4", "only what the sidecar reads"),
        ("lmdb:///data", "is in no LMDB"),
        *((live, r"fb\.Clips\.stream") for live in ("rtsp://me:secret@host/gate?secret", "/dev/video0", "lavfi://testsrc", "udp://@:1")),
    ],
)  # fmt: skip
def test_what_names_no_clip(url: Any, match: str, proxy: FakeServer) -> None:
    """Is the sample's fault, which is told, and can be passed over; no secret is shown."""
    with pytest.raises(UnsupportedVideo, match=match) as caught:
        run(fb.video("uniform(2)", source="url"), url)
    assert "secret" not in str(caught.value)
    assert LIST in str(caught.value)
    assert run(fb.video(source="url", handler=wds.ignore_and_continue), url) == []


def test_a_sample_without_the_field(clips: list[str]) -> None:
    """Is no clip that is bad: a name was mistaken, or a ``.decode()`` is missing."""
    with pytest.raises(ValueError, match=r"'0' of s3://bucket/list\.tar has no 'uri', which .* it has '__key__', '__url__', 'url', 'cls'"):
        run(fb.video(source="uri", replace_corrupt=True), clips[0])
    with pytest.raises(ValueError, match=r"would take the place of 'mask', .* rename that field"):
        list(fb.video(source="url")([{"__key__": "a", "url": clips[0], "mask": 1}]))
    with pytest.raises(ValueError, match="a stage of its own"):
        fb.video(source="url")(".mp4", CLIP)


@pytest.mark.parametrize("source", ["", 7, ["url"]])
def test_a_field_is_named_by_a_text(source: Any) -> None:
    with pytest.raises(TypeError, match="source takes the name of a field"):
        fb.video(source=source)


def test_a_clip_of_the_sidecar_that_is_not_there(proxy: FakeServer) -> None:
    """404 is an answer about the clip; what says nothing about it, such as 403, is no clip to be replaced."""
    proxy.put("/s3/bucket/a.mp4", CLIP)
    stage = fb.video("uniform(1)", source="url", replace_corrupt=True)
    assert [one["__corrupt__"] for one in run(stage, "s3://bucket/a.mp4", "https://host/none.mp4?sig=secret")] == ["", "1"]
    with pytest.raises(MissingVideo, match=r"^https://host/none\.mp4 in s3://bucket/list\.tar: .*404") as caught:
        run(fb.video(source="url"), "https://host/none.mp4?sig=secret")
    assert "secret" not in str(caught.value)


def test_it_has_one_time_and_its_counters(clips: list[str]) -> None:
    """As a member."""
    COUNTS.reset()
    run(fb.video("uniform(2)", source="url"), *clips[:2])
    assert (COUNTS.snapshot()["video_clips"], COUNTS.snapshot()["video_frames"]) == (2, 4)
    with pytest.raises(VideoTimeout, match=r"0\.mp4 in s3"):
        run(fb.video(source="url", time_limit_s=1e-9), clips[0])
    assert COUNTS.snapshot()["video_timeout"] == 1


def test_draws_by_epoch_and_visit(clips: list[str]) -> None:
    """Samples of a list of URLs have no key: the clip's own is theirs. Each epoch and each visit draws anew, and every process the same."""
    stage = fb.video("clip('random', 1)", source="url")

    def firsts(*urls: str, stage: Any = stage, epoch: int = 0) -> list[int]:
        stage.begin(epoch, 0, epoch)
        return [frame_number(one["frames"][0]) for one in stage(iter([{"url": url} for url in urls]))]

    found = firsts(*clips)
    assert firsts(*clips[::-1], stage=pickle.loads(pickle.dumps(stage))) == found[::-1]
    assert len(set(found)) > 1
    assert firsts(*clips, epoch=1) != found
    assert len(set(firsts(*[clips[0]] * 6))) > 1
    (sample,) = stage([{"url": clips[0]}])
    assert (sample["__key__"], sample["__url__"]) == (clips[0], clips[0])


def test_a_memo_knows_the_version_of_the_clip(clips: list[str], tmp_path: Path) -> None:
    """The URL alone would give what the clip was before."""

    def frames_of() -> list[int]:
        made = fb.memo(folder=tmp_path / "memo", size="64MB")(fb.video("uniform(2)", source="url"))
        found = [one["video"].frames for one in made(iter([{"__key__": "a", "__url__": "", "url": url} for url in clips[:2]]))]
        assert opened_memo._OPEN[str((tmp_path / "memo").resolve())].writer.drained(20)
        return found

    COUNTS.reset()
    assert frames_of() == frames_of() == [48, 48]
    assert COUNTS.snapshot()["memo_hits"] == 2
    Path(clips[1]).write_bytes(rendered(frames=12))
    assert frames_of() == [48, 12]
    state, other = Path(clips[1]).stat(), rendered(frames=11)
    assert len(other) <= state.st_size
    Path(clips[1]).write_bytes(other.ljust(state.st_size, b"\0"))
    os.utime(clips[1], ns=(state.st_atime_ns, state.st_mtime_ns))
    assert frames_of() == [48, 11]
    Path(clips[1]).unlink()
    with pytest.raises(MissingVideo):
        frames_of()


def test_a_memo_asks_the_sidecar(proxy: FakeServer, tmp_path: Path) -> None:
    """For the ETag."""
    made = fb.memo(folder=tmp_path / "memo", size="64MB")(fb.video("uniform(2)", source="url"))
    found = []
    for frames in (48, 48, 12):
        proxy.put("/s3/bucket/a.mp4", rendered(frames=frames))
        found += [one["video"].frames for one in made(iter([{"__key__": "a", "url": "s3://bucket/a.mp4"}]))]
    assert found == [48, 48, 12]


def test_a_scan_knows_it_by_its_name(clips: list[str], tmp_path: Path) -> None:
    """Looked at once, at its first use."""
    stage = fb.video("adaptive(2)", source="url", metadata=tmp_path / "films.clips")
    COUNTS.reset()
    assert [one["video"].motion is not None for one in run(stage, clips[0], clips[0])] == [True, True]
    assert COUNTS.snapshot()["video_scanned"] == 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.webdataset
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.usefixtures("warm_starts")
def test_a_list_of_clips_as_shards(clips: list[str], workers: int) -> None:
    """In webdataset's own pipeline, over workers: each clip once in each epoch."""
    torch = pytest.importorskip("torch")
    stage = fb.video({0: "uniform(2)", 1: "uniform(3)"}, source="url")
    pipeline = wds.DataPipeline(wds.SimpleShardList(clips), wds.split_by_worker, fb.ahead(), stage, wds.map(named))
    context = "fork" if workers else None
    loader = torch.utils.data.DataLoader(pipeline, batch_size=None, num_workers=workers, multiprocessing_context=context)
    assert [sorted(map(tuple, loader)) for _ in range(2)] == [[(url, frames) for url in clips] for frames in (2, 3)]


def named(sample: dict[str, Any]) -> tuple[str, int]:
    return sample["url"], len(sample["frames"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.webdataset
def test_a_shard_of_urls_is_resumed_exactly(clips: list[str], proxy: FakeServer) -> None:
    """Random frames behind a state are those of the run that was not stopped."""
    rows = [{"json": json.dumps({"url": url, "label": number}).encode()} for number, url in enumerate(clips)]
    proxy.put("/s3/bucket/list.tar", shard_of_samples(*rows))

    def dataset() -> Any:
        return fb.WebDataset(LIST).decode().compose(fb.video("clip('random', 2)", source="json.url"))

    def told(samples: Any) -> list[tuple[int, bytes]]:
        return [(one["json"]["label"], one["frames"].tobytes()) for one in samples]

    whole = told(dataset())
    assert [label for label, _ in whole] == [0, 1, 2, 3]
    stopped = dataset()
    reading = iter(stopped)
    begun = [next(reading) for _ in range(2)]
    resumed = dataset()
    resumed.load_state_dict(stopped.state_dict())
    assert told(begun) + told(resumed) == whole


def test_an_announced_clip_is_opened_by_who_announced_it(proxy: FakeServer) -> None:
    """Else its plan would never move on, and the sidecar would fetch no more than one window ahead."""
    for number in range(3):
        proxy.put(f"/s3/bucket/{number}.mp4", CLIP)
    stages = wds.SimpleShardList("s3://bucket/{0..2}.mp4"), fb.ahead(), fb.video("uniform(1)", source="url")
    assert len(list(wds.DataPipeline(*stages))) == 3
    (reader,) = {plan.target.removeprefix("/v1/plans/").partition("?")[0] for plan in proxy.plans}
    for number in range(3):
        asked = [one for one in proxy.asked(f"/s3/bucket/{number}.mp4") if one.method == "GET"]
        assert any(one.headers["Range"].startswith("bytes=0-") for one in asked)  # by which the sidecar knows an opening
        assert {one.headers["Forebay-Reader"] for one in asked} == {reader}
