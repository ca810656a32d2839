"""``fb.Clips``: what it takes, its samples by number and over workers; and of a live stream sample after sample."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from support.clips import frame_number, rendered
from support.fake_proxy import FakeServer
from support.lengths import ordinarily

import forebay_loader as fb
from forebay_loader.base.counters import COUNTS
from forebay_loader.videos import clip_sample
from forebay_loader.videos.errors import CorruptVideo, MissingVideo, UnsupportedVideo

CLIP = rendered()
STAGE = fb.video("uniform(2)", size=48)
STARTS = ordinarily(1, of=2, what="ways that workers of loose clips start")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six clips, the last ones below a folder."""
    for number in range(6):
        path = tmp_path / "sub" / f"{number}.mp4" if number > 3 else tmp_path / f"{number}.mp4"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(CLIP)
    return tmp_path


def urls(clips: fb.Clips) -> list[str]:
    return [row["url"] for row in clips.rows]


def test_a_sample_is_its_row_with_frames(folder: Path) -> None:
    """By number, from the end too, and as slices; nothing of a row is lost."""
    rows = [{"url": folder / f"{number}.mp4", "label": number, "text": {"en": "a"}} for number in range(4)]
    clips = fb.Clips(rows, video=fb.video("uniform(2)", size=48, audio=True))
    assert len(clips) == 4
    assert set(clips[1]) == {"__key__", "__url__", "url", "label", "text", "frames", "mask", "video", "audio", "audio_rate_hz"}
    assert (clips[-1]["label"], clips[-1]["__key__"], clips[-1]["__url__"]) == (3, "3", str(folder / "3.mp4"))
    assert clips[2]["frames"].shape == (2, 48, 64, 3)
    assert [one["label"] for one in clips[1:3]] == [1, 2]
    assert [one["label"] for one in clips] == [0, 1, 2, 3]
    with pytest.raises(IndexError):
        clips[4]
    keyed = fb.Clips([{"film": folder / "0.mp4", "__key__": "gate"}], video=fb.video("uniform(2)", source="film"))
    assert keyed[0]["__key__"] == "gate"


def test_patterns_and_globs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of a pattern, and of names; braces of URLs are not looked for on a disk; a path that is there is itself."""
    monkeypatch.chdir(folder)
    assert urls(fb.Clips("{2..0}.mp4", video=STAGE)) == ["2.mp4", "1.mp4", "0.mp4"]
    assert urls(fb.Clips("*.mp4", video=STAGE)) == [f"{number}.mp4" for number in range(4)]
    assert urls(fb.Clips("**/[45].mp4", video=STAGE)) == ["sub/4.mp4", "sub/5.mp4"]
    assert urls(fb.Clips("s3://b/{a,b}[1].mp4", video=STAGE)) == ["s3://b/a[1].mp4", "s3://b/b[1].mp4"]
    Path("{0..9}[1].mp4").write_bytes(CLIP)
    assert urls(fb.Clips("{0..9}[1].mp4", video=STAGE)) == ["{0..9}[1].mp4"]
    assert urls(fb.Clips(["*.mp4", Path("a")], video=STAGE)) == ["*.mp4", "a"]
    assert urls(fb.Clips(folder / "sub" / "*.mp4", video=STAGE)) == [str(folder / f"sub/{number}.mp4") for number in (4, 5)]
    with pytest.raises(IsADirectoryError, match=r"sub is a directory: sub/\*\.mp4 names the clips in it"):
        fb.Clips("sub", video=STAGE)
    with pytest.raises(FileNotFoundError, match=r"no file matches 'none/\*\.mp4'"):
        fb.Clips("none/*.mp4", video=STAGE)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "\ufeffurl,label\r\n0.mp4,3\r\ns3://b/1.mp4,\"x, y\"\r\n"),
        ("a.json", json.dumps([{"url": "0.mp4", "label": "3"}, {"url": "s3://b/1.mp4", "label": "x, y"}])),
        ("a.JSONL", '{"url": "0.mp4", "label": "3"}\n\n{"url": "s3://b/1.mp4", "label": "x, y"}\n'),
    ],
)  # fmt: skip
def test_files_of_rows(folder: Path, name: str, text: str) -> None:
    """A relative path is that of the file's folder; a URL is none."""
    (folder / name).write_text(text)
    clips = fb.Clips(folder / name, video=STAGE)
    assert clips.rows == [{"url": str(folder / "0.mp4"), "label": "3"}, {"url": "s3://b/1.mp4", "label": "x, y"}]
    assert clips[0]["frames"].shape == (2, 48, 64, 3)


@pytest.mark.parametrize(
    ("name", "text", "match"),
    [
        ("a.csv", "path\n0.mp4\n", r"a\.csv: its first line has no column 'url'; it has \['path'\]"),
        ("a.csv", "", "no column 'url'"),
        ("a.csv", 'url\n"0.mp4\n', "a.csv: "),
        ("a.json", '{"url": "a"}', "a dict, and a list of rows"),
        ("a.json", "[", r"a\.json: Expecting"),
        ("a.json", "[" * 100_000, r"a\.json: "),
        ("a.jsonl", '{"url": "a"}\n{"uri": "b"}', "row 1 has no 'url'; it has 'uri'"),
        ("a.csv", "url\n\n", "the list of clips is empty"),
        ("a.csv", "url,b\n,c\n", "row 0: 'url' is empty"),
    ],
)
def test_files_that_hold_no_rows(tmp_path: Path, name: str, text: str, match: str) -> None:
    """Named where they are given."""
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=match):
        fb.Clips(tmp_path / name, video=STAGE)


@pytest.mark.parametrize(
    ("clips", "error", "match"),
    [
        ([], ValueError, "empty"), (7, TypeError, "got int"), (b"a.mp4", TypeError, "got bytes"), ({"url": "a"}, TypeError, "got dict"),
        ([{"label": 1}], ValueError, "row 0 has no 'url'; it has 'label'"), (["a", 7], TypeError, "row 1: 'url' takes .* got int"),
        ([{"url": None}], TypeError, "got NoneType"), ([{"url": ""}], ValueError, "row 0: 'url' is empty"),
        ([{"url": "a", 7: 1}], TypeError, "row 0: the names of fields"), ([{"url": "a", "__key__": 7}], TypeError, "__key__"),
        ("rtsp://me:secret@h/a?secret", ValueError, r"^row 0: rtsp://h/a is a live stream or a camera.*fb\.Clips\.stream\(url\)"),
        (["a", "\ud800.mp4"], ValueError, "row 1: 'url' has a character"),
        (["a", "/dev/video0"], ValueError, "row 1: /dev/video0 is a live stream"),
    ],
)  # fmt: skip
def test_what_is_no_list_of_clips(clips: Any, error: type[Exception], match: str) -> None:
    """Before the first epoch, not in the middle of it."""
    with pytest.raises(error, match=match) as caught:
        fb.Clips(clips, video=STAGE)
    assert "secret" not in str(caught.value)
    with pytest.raises(TypeError, match=r"video takes fb\.video"):
        fb.Clips(["a"], video="uniform(8)")


def test_clips_that_are_not_there(folder: Path) -> None:
    """Each names itself; with ``replace_corrupt`` the next that can be decoded stands in its place."""
    rows = [str(folder / "none.mp4"), str(folder / "sub"), str(folder / "0.mp4")]
    clips = fb.Clips(rows, video=STAGE)
    for number, why in enumerate(["there is no such file", "is a directory, and no clip"]):
        with pytest.raises(MissingVideo, match=f"^{rows[number]}: {why}"):
            clips[number]
    (folder / "1.mp4").write_bytes(CLIP[:1000])
    with pytest.raises(CorruptVideo, match=f"^{folder}/1.mp4: "):
        fb.Clips(folder / "1.mp4", video=STAGE)[0]
    found = list(fb.Clips(rows, video=fb.video("uniform(2)", replace_corrupt=True)))
    assert [(one["url"], one["__corrupt__"]) for one in found] == [(rows[2], "0"), (rows[2], "1"), (rows[2], "")]


def test_what_no_clip_can_be(folder: Path) -> None:
    """A pipe, a device, a link to itself and a name that no file has are replaced too, and do not end the epoch."""
    os.mkfifo(folder / "pipe.mp4")
    (folder / "link.mp4").symlink_to("link.mp4")
    odd = {"pipe.mp4": "is a pipe or a device", "link.mp4": "is a symbolic link", "x" * 300: "no file can have a name as long"}
    rows = [*(str(folder / name) for name in odd), str(folder / "0.mp4")]
    clips = fb.Clips(rows, video=STAGE)
    for number, why in enumerate(odd.values()):
        with pytest.raises(MissingVideo, match=why):
            clips[number]
    found = list(fb.Clips(rows, video=fb.video("uniform(2)", replace_corrupt=True)))
    assert [one["__corrupt__"] for one in found] == ["0", "1", "2", ""]


def test_clips_of_a_sidecar(proxy: FakeServer) -> None:
    """By ranges, in any mixture with files; errors have no secret, though samples keep their URL."""
    proxy.put("/https/host/a.mp4?sig=secret", CLIP)
    clips = fb.Clips(["https://host/a.mp4?sig=secret", "https://host/none.mp4?sig=secret"], video=STAGE)
    assert clips[0]["__url__"] == "https://host/a.mp4?sig=secret"
    with pytest.raises(MissingVideo, match=r"^https://host/none\.mp4: ") as caught:
        clips[1]
    assert "secret" not in str(caught.value)


def test_a_list_of_a_hundred_thousand_clips(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which a hundredth is broken: built at once, and each broken one is replaced."""
    began_s = time.process_time()
    rows = [{"url": f"{folder}/{'none' if number % 100 == 50 else number % 4}.mp4", "label": number} for number in range(100_000)]
    clips = fb.Clips(rows, video=fb.video("uniform(1)", replace_corrupt=True))
    assert len(clips) == 100_000
    assert time.process_time() - began_s < 2

    def stubbed(opened: Any, asked: Any, *_: Any) -> clip_sample.DecodedClip:
        with opened(None) as source:
            source.clip_bytes()  # opens the file
        return clip_sample.DecodedClip(None, [], [], None, 0)  # type: ignore[arg-type]

    monkeypatch.setattr(clip_sample, "_decoded", stubbed)
    found = [clips[number] for number in range(2_000)]
    assert [one["__corrupt__"] for one in found if one["__corrupt__"]] == [str(number) for number in range(50, 2_000, 100)]
    assert [one["label"] for one in found] == [number + (number % 100 == 50) for number in range(2_000)]


def as_they_are(batch: Any) -> Any:
    return batch


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("start", ["fork", "spawn"][:STARTS])
@pytest.mark.usefixtures("warm_starts")
def test_a_map_style_data_set(folder: Path, start: str) -> None:
    """Over workers and ranks each clip once, with draws of its epoch; it travels closed."""
    data = pytest.importorskip("torch.utils.data")
    epoch = multiprocessing.get_context("spawn").Value("i", 0)
    rows = [{"url": str(path), "label": number} for number, path in enumerate(sorted(folder.rglob("*.mp4")))]
    clips = fb.Clips(rows, video=fb.video("clip('random', 1)", epoch=epoch))
    firsts: list[dict[int, int]] = []
    for epoch.value in range(2):
        seen: dict[int, int] = {}
        for rank in range(2):
            share = data.DistributedSampler(clips, num_replicas=2, rank=rank, shuffle=True)
            loader = data.DataLoader(clips, 2, sampler=share, num_workers=1, collate_fn=as_they_are, multiprocessing_context=start)
            seen |= {one["label"]: frame_number(one["frames"][0]) for batch in loader for one in batch}
        firsts.append(seen)
    assert sorted(firsts[0]) == sorted(firsts[1]) == list(range(6))
    assert firsts[0] != firsts[1]
    assert {one["label"]: frame_number(one["frames"][0]) for one in clips} == firsts[1]


@pytest.mark.filterwarnings("ignore:'set_vital':UserWarning")
def test_the_state_of_torchdatas_loader(folder: Path) -> None:
    """What comes behind it is what would have come."""
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    torch = pytest.importorskip("torch")

    def made() -> Any:
        torch.manual_seed(3)
        return loaders.StatefulDataLoader(fb.Clips(str(folder / "**/*.mp4"), video=STAGE), 1, shuffle=True, collate_fn=as_they_are)

    whole = [batch[0]["__key__"] for batch in made()]
    stopped = made()
    reading = iter(stopped)
    begun = [next(reading)[0]["__key__"] for _ in range(3)]
    resumed = made()
    resumed.load_state_dict(stopped.state_dict())
    assert begun + [batch[0]["__key__"] for batch in resumed] == whole


def test_it_pickles(folder: Path) -> None:
    """With what ``fb.video`` was told."""
    clips = pickle.loads(pickle.dumps(fb.Clips([str(folder / "0.mp4")], video=STAGE)))
    assert clips[0]["frames"].shape == (2, 48, 64, 3)
    assert repr(clips) == f"<Clips 1 of {STAGE!r}>"


# Live


def test_a_camera_sample_after_sample() -> None:
    """Until it ends: the last is filled, which its mask says."""
    found = list(fb.Clips.stream("lavfi://testsrc=size=64x48:rate=25:duration=1", 10, video=fb.video(size=24)))
    assert [(one["__key__"], one["frames"].shape, one["mask"].tolist()) for one in found] == [
        ("0", (10, 24, 32, 3), [True] * 10),
        ("10", (10, 24, 32, 3), [True] * 10),
        ("20", (10, 24, 32, 3), [True] * 5 + [False] * 5),
    ]
    assert (found[2]["frames"][4:] == found[2]["frames"][4]).all()
    assert found[0]["__url__"] == "lavfi://testsrc=size=64x48:rate=25:duration=1"


@pytest.mark.parametrize(("frames", "stride", "last"), [(12, 1, 12), (24, 2, 24), (7, 3, 2), (49, 1, 48)])
def test_a_stream_ends(tmp_path: Path, frames: int, stride: int, last: int) -> None:
    """Each frame that was asked for once, and no sample without one."""
    table = {"url": str(tmp_path / "live.ts"), "kind": "live"}
    (tmp_path / "live.ts").write_bytes(rendered(container="mpegts"))
    COUNTS.reset()
    found = list(fb.Clips.stream(table, frames, stride))
    assert [frame_number(one) for each in found for one in each["frames"][each["mask"]]] == list(range(0, 48, stride))
    assert found[-1]["mask"].sum() == last
    assert COUNTS.snapshot()["video_clips"] == len(found)


def test_a_stream_that_breaks_off() -> None:
    """A camera that goes away is an error, behind the frames that came."""
    body = rendered(container="mpegts")

    def sent_in_part(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(10_000)
            connection.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n" % (2 * len(body)) + body)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=sent_in_part, args=(listener,))
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/gate.ts"
        found: list[Any] = []
        with pytest.raises(UnsupportedVideo, match=f"^{url}: broke off"):
            found.extend(fb.Clips.stream(f"live+{url}?secret", 20))
        thread.join()
    seen = [frame_number(one) for each in found for one in each["frames"][each["mask"]]]
    assert len(seen) > 40
    assert seen == list(range(len(seen)))


@pytest.mark.parametrize(("url", "kind"), [("/nowhere/none.ts", "live"), ("/dev/video97", "camera")])
def test_a_stream_that_is_not_there(url: str, kind: str) -> None:
    """Named when it is first asked."""
    with pytest.raises(UnsupportedVideo, match=f"^{url}: cannot be opened"):
        next(fb.Clips.stream({"url": url, "kind": kind}))


@pytest.mark.parametrize(
    ("how", "error", "match"),
    [
        ({"url": "a.mp4"}, ValueError, r"<ClipSource a\.mp4> is no live stream: fb\.Clips\(\[url\]"),
        ({"frames": 0}, ValueError, "frames takes"), ({"stride": "1"}, TypeError, "stride takes"),
        ({"video": fb.video("uniform(2)")}, ValueError, "chosen by frames= and stride="),
        ({"video": fb.video(audio=True)}, ValueError, "a stream has no sound"), ({"video": 7}, TypeError, "video takes"),
    ],
)  # fmt: skip
def test_arguments_of_a_stream(how: dict[str, Any], error: type[Exception], match: str) -> None:
    """Checked before anything is opened."""
    with pytest.raises(error, match=match):
        fb.Clips.stream(**{"url": "lavfi://testsrc", **how})
