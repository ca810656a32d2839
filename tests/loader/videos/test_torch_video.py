"""``wds.torch_video`` where torchvision decodes no more."""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy
import pytest
from support.clips import pictures_of, rendered, sound_of

import forebay_loader as fb
from forebay_loader.videos import torch_video as module
from forebay_loader.videos.torch_video import torch_video

torch = pytest.importorskip("torch")
wds = pytest.importorskip("webdataset")
pytestmark = pytest.mark.webdataset

CLIP = rendered(audio="aac", channels=2)


@pytest.fixture
def enabled() -> Iterator[None]:
    module._stock.cache_clear()
    fb.enable()
    yield
    fb.disable()
    module._stock.cache_clear()


def test_enable_puts_it_in_place(enabled: None) -> None:
    """By both of its names; pickled by the one of ours; given back."""
    assert wds.torch_video is wds.autodecode.torch_video is torch_video
    assert pickle.loads(pickle.dumps(wds.torch_video)) is torch_video
    fb.enable()
    fb.disable()
    assert wds.torch_video is wds.autodecode.torch_video
    assert wds.torch_video.__module__ == "webdataset.autodecode"


def test_what_torchvision_gave(enabled: None) -> None:
    """Tensors of all of it: T x H x W x 3, channels x samples, and the two rates."""
    frames, audio, info = wds.torch_video(".mp4", CLIP)
    assert numpy.array_equal(frames.numpy(), numpy.stack(pictures_of(CLIP)))
    whole, rate = sound_of(CLIP)
    assert (audio.dtype, audio.shape) == (torch.float32, (2, 96_000))
    assert numpy.abs(audio.numpy() - whole[:, :96_000]).max() < 1e-2
    assert info == {"video_fps": 24.0, "audio_fps": rate}


def test_a_clip_without_sound(enabled: None) -> None:
    """One channel of nothing, and no rate, as torchvision has it."""
    _, audio, info = wds.torch_video(".webm", rendered(codec="libvpx-vp9", container="webm"))
    assert (audio.shape, set(info)) == ((1, 0), {"video_fps"})


@pytest.mark.parametrize("container", ["mp4", "mkv"])
@pytest.mark.parametrize("more", [{"audio_s": 5.0}, {"audio_s": 1.0}, {"start_ms": 700}], ids=["longer", "shorter", "pictures late"])
def test_all_of_the_sound(enabled: None, container: str, more: dict[str, Any]) -> None:
    """Whatever the pictures' time: torchvision gave what its decoder gave, one frame after the other."""
    data = rendered(audio="flac", container="matroska" if container == "mkv" else "mp4", **more)
    _, audio, _ = module._here(".mp4", data, 60.0)
    whole, _ = sound_of(data)
    assert numpy.abs(audio.numpy() - whole / float(1 << (8 * whole.dtype.itemsize - 1))).max() < 1e-6


def test_sound_that_cannot_be_read(enabled: None) -> None:
    """None is given, as before; it is counted."""
    frames, audio, info = wds.torch_video(".mp4", CLIP.replace(b"mp4a", b"enca"))
    assert (len(frames), audio.shape, set(info)) == (48, (1, 0), {"video_fps"})
    assert fb.counters()["video_unheard"] == 1


def test_a_time_limit_of_its_own(enabled: None) -> None:
    """A minute is not enough for a film, and may be too much."""
    with pytest.raises(fb.VideoError, match="time_limit_s"):
        partial(wds.torch_video, time_limit_s=1e-9)(".mp4", CLIP)
    assert len(partial(wds.torch_video, time_limit_s=None)(".mp4", CLIP)[0]) == 48


@pytest.mark.parametrize("key", [".jpg", ".json", ".ts", ".left.txt"])
def test_what_is_no_clip(enabled: None, key: str) -> None:
    """None, for the next decoder."""
    assert wds.torch_video(key, b"x") is None


def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The ``io`` of a torchvision that has nothing in it yet."""
    parent: Any = types.ModuleType("torchvision")
    parent.io = types.ModuleType("torchvision.io")
    monkeypatch.setitem(sys.modules, "torchvision", parent)
    monkeypatch.setitem(sys.modules, "torchvision.io", parent.io)
    module._stock.cache_clear()
    return parent.io


def test_a_torchvision_that_decodes_is_left_to_it(monkeypatch: pytest.MonkeyPatch, enabled: None) -> None:
    """Its answer, by webdataset's own function."""
    installed(monkeypatch).read_video = lambda path, pts_unit: (path[-4:], pts_unit)
    assert wds.torch_video(".mp4", CLIP) == (".mp4", "sec")


def test_a_torchvision_that_decodes_no_more(monkeypatch: pytest.MonkeyPatch, enabled: None) -> None:
    """As 0.26 is: the package is there, its function is not."""
    installed(monkeypatch)
    assert len(wds.torch_video(".mp4", CLIP)[0]) == 48


def test_a_bad_clip_is_an_error(enabled: None) -> None:
    """Which 1.x wraps in one that has the sample's key and shard."""
    sample = {"__key__": "a", "__url__": "s3://b/0.tar", "mp4": CLIP[:900]}
    dataset = wds.DataPipeline(lambda: iter([dict(sample)]), wds.decode(wds.torch_video))
    wrapped = getattr(wds.autodecode, "DecodingError", None)
    with pytest.raises(wrapped or fb.VideoError) as error:
        list(dataset)
    assert isinstance(error.value.__cause__ if wrapped else error.value, fb.VideoError)


def test_a_decoder_of_the_users_own_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a script put there before."""

    def own(key: str, data: bytes) -> None: ...

    monkeypatch.setattr(wds, "torch_video", own)
    fb.enable()
    assert wds.torch_video is own
    fb.disable()
