"""Sources travel closed into workers that are spawned and persist: each worker opens its own, and what it gives is right in each epoch."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

av = pytest.importorskip("av", reason="the extra `video` is not installed")
lmdb = pytest.importorskip("lmdb", reason="the extra `lmdb` is not installed")
data = pytest.importorskip("torch.utils.data", reason="torch is not installed")

from support.clips import frame_number, painted, rendered  # noqa: E402 -- needs av
from support.fake_proxy import FakeServer  # noqa: E402

from forebay_loader.videos.sources.choice import VideoSource, source_of  # noqa: E402

WANTED = [3, 7]


class Numbers:
    """Of each source the numbers painted on two frames; whether it came closed; a camera's frames by their shape."""

    def __init__(self, sources: list[VideoSource]) -> None:
        self.sources = sources

    def __len__(self) -> int:
        return len(self.sources)

    def __getitem__(self, number: int) -> tuple[int, list[Any], str]:
        source = self.sources[number]
        there = repr(source)
        with source:  # type: ignore[attr-defined]
            frames = source.frames(WANTED)
        return number, [frame.shape if frame.shape[0] == 48 else frame_number(frame) for frame in frames], there


def as_they_are(batch: Any) -> Any:
    return batch


@pytest.fixture
def sources(tmp_path: Path, proxy: FakeServer) -> list[VideoSource]:
    """One of each kind: memory, a file, an object of the sidecar, another container, frames decoded before, a live stream, a camera."""
    proxy.put("/s3/bucket/a.mp4", rendered())
    (tmp_path / "a.mp4").write_bytes(rendered(b_frames=2))
    (tmp_path / "live.ts").write_bytes(rendered(container="mpegts"))
    with lmdb.open(str(tmp_path / "base"), map_size=1 << 24) as base, base.begin(write=True) as transaction:
        for number in range(8):
            made = io.BytesIO()
            with av.open(made, "w", format="image2pipe") as out:
                stream: Any = out.add_stream("png", width=128, height=96, pix_fmt="rgb24")
                frame = av.VideoFrame.from_ndarray(painted(number), format="rgb24")
                out.mux([*stream.encode(frame), *stream.encode(None)])
            transaction.put(f"a/{number}".encode(), made.getvalue())
    return [
        source_of(rendered()),
        source_of(tmp_path / "a.mp4"),
        source_of("s3://bucket/a.mp4"),
        source_of(rendered(container="matroska")),
        source_of(f"lmdb://{tmp_path}/base?clip=a"),
        source_of({"url": str(tmp_path / "live.ts"), "kind": "live"}),
        source_of("lavfi://testsrc=size=64x48:rate=25"),
    ]


@pytest.mark.usefixtures("warm_starts")
def test_each_source_in_spawned_workers_that_persist(sources: list[VideoSource]) -> None:
    """Two epochs; opened by the parent before, they travel closed all the same."""
    for source in sources:
        source.open()
    loader = data.DataLoader(
        Numbers(sources), batch_size=None, num_workers=2, multiprocessing_context="spawn", persistent_workers=True, collate_fn=as_they_are
    )
    for _ in range(2):
        found = sorted(loader, key=lambda one: int(one[0]))
        assert [numbers for _, numbers, _ in found] == [WANTED] * 6 + [[(48, 64, 3)] * 2]
        assert not any(", open" in there for _, _, there in found)
    for source in sources:
        source.close()
