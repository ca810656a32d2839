"""``fb.Clips``: clips that lie in no shard, as a map-style data set; and of a live stream sample after sample, as its frames come."""

from __future__ import annotations

import csv
import glob
import json
import os
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Sequence, Union

from forebay_loader.base.argument_types import whole
from forebay_loader.samples.indexed_shard import place
from forebay_loader.videos.clip_field import shown_clip
from forebay_loader.videos.clip_stage import ClipStage, Sample
from forebay_loader.videos.sources.kinds import is_live
from forebay_loader.videos.stage import video as made_stage
from forebay_proxy.wire.urls.patterns import expand

__all__ = ["Clips"]

_LISTS = (".csv", ".json", ".jsonl")
_KEPT = ("__key__", "__url__")
Path = Union[str, "os.PathLike[str]"]


class Clips(Sequence[Sample]):
    """Clips that lie in no shard as one sequence, in the order given: ``clips[k]``, ``len(clips)``. It can be pickled.

    A sample is its row with ``frames``, ``mask``, ``video`` (and ``audio``, ``audio_rate_hz``), ``__key__``, its number unless the row has
    one, and ``__url__``. No clip is looked at before it is asked for. Local files need no sidecar.

    Args:
        clips: A brace pattern of paths or URLs, a local glob, or the path of a ``.csv``, ``.json`` or ``.jsonl`` file of rows, in which
            relative paths are relative to that file. Or a list, whose entries are paths, URLs or rows. A row is a mapping with a ``url``
            and whatever else is to come with its sample.
        video: ``fb.video(…)``. Its ``source`` names the field with the URL if that is not ``url``. With ``replace_corrupt`` the next clip
            that can be decoded replaces one that cannot, or that is not there.

    Raises:
        TypeError: ``clips`` is no list of clips, or a row has a URL that is no text. The text has the number of the row.
        ValueError: The list is empty, a row has no URL, or it names a live stream.
        FileNotFoundError: A glob matches nothing, or there is no such file of rows.
        IsADirectoryError: ``clips`` is a folder.
        fb.VideoError: While it is read: a clip cannot be decoded, or is not there (``MissingVideo``). It names the clip.
        fb.ShardReadError: While it is read: the sidecar cannot read a clip.

    Examples:
        >>> rows = [{"url": "s3://bucket/a.mp4", "label": 3}, {"url": "clips/b.mp4", "label": 1}]
        >>> clips = fb.Clips(rows, video=fb.video("uniform(8)", size=224))
        >>> len(clips)
        2
    """

    def __init__(self, clips: Union[Path, Iterable[Union[Path, Mapping[str, Any]]]], *, video: Any) -> None:
        if not isinstance(video, ClipStage):
            raise TypeError(f"video takes fb.video(…); got {video!r}")
        self._video = video.by_field("url")
        self._field = self._video.asked.source
        listed = _listed(clips, self._field)
        if not listed:
            raise ValueError("the list of clips is empty")
        self.rows = [_row(row, number, self._field) for number, row in enumerate(listed)]

    def __repr__(self) -> str:
        return f"<Clips {len(self)} of {self._video!r}>"

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[at] for at in range(*number.indices(len(self)))]
        return self._video.by_number(self._sample, place(number, len(self)), len(self))

    def _sample(self, number: int) -> Sample:
        row = self.rows[number]
        return {"__key__": str(number), "__url__": row[self._field], **row}

    @staticmethod
    def stream(url: Any, frames: int = 16, stride: int = 1, *, video: Any = None) -> Iterator[Sample]:
        """Samples of a live stream or a camera: ``frames`` frames each, every ``stride``-th, in their order, until the stream ends.

        If the stream ends within a sample, its last frame is repeated, and ``mask`` is False there. ``__key__`` is the number of the first
        frame, counted from the opening. Frames that come faster than they are taken wait at the sender or are lost, as the protocol has it.

        Args:
            url: A URL or a table of settings, as ``source_of`` takes it.
            frames: How many frames a sample has.
            stride: Every how many frames one is taken.
            video: ``fb.video(size=…, time_limit_s=…)``. It chooses no frames, and a stream has no sound.

        Returns:
            An iterator of samples.

        Raises:
            TypeError: An argument has the wrong kind.
            ValueError: ``url`` is no live stream, or an argument has a value that cannot be.
            fb.VideoError: While it is read: the stream cannot be opened, breaks off, or gives no picture for ``time_limit_s``. What came
                before is given first.

        Examples:
            >>> for sample in fb.Clips.stream("rtsp://camera/gate", frames=16): ...
        """
        stage = made_stage() if video is None else video
        if not isinstance(stage, ClipStage):
            raise TypeError(f"video takes fb.video(…); got {video!r}")
        if stage.asked.sampling is not None or stage.asked.audio:
            raise ValueError("a stream has no sound, and its frames are chosen by frames= and stride=: fb.video(size=…, time_limit_s=…)")
        frames, stride = whole("frames", frames, "a number from 1", 1), whole("stride", stride, "a number from 1", 1)
        from forebay_loader.videos.clip_windows import live_source, windows  # noqa: PLC0415  # PyAV and numpy

        return windows(live_source(url, stage.asked), shown_clip(url), frames, stride)


def _listed(clips: Any, field: str) -> List[Any]:
    if not isinstance(clips, (str, os.PathLike)):
        if isinstance(clips, (bytes, Mapping)) or not isinstance(clips, Iterable):
            raise TypeError(f"clips takes a path, a pattern, or a list of paths, URLs and rows; got {type(clips).__name__}")
        return list(clips)
    text = os.fspath(clips)
    if "://" not in text and text.lower().endswith(_LISTS):
        return _of_file(text, field)
    if os.path.isdir(text):
        raise IsADirectoryError(f"{text} is a directory: {os.path.join(text, '*.mp4')} names the clips in it")
    if os.path.exists(text):
        return [text]
    return [found for one in expand(text) for found in _matches(one)]


def _matches(text: str) -> List[str]:
    if ":" in text.partition("/")[0] or not glob.has_magic(text):
        return [text]
    found = sorted(glob.glob(text, recursive=True))
    if not found:
        raise FileNotFoundError(f"no file matches {text!r}")
    return found


def _of_file(path: str, field: str) -> List[Any]:
    """Rows of a file. Raises ``ValueError`` for one that is none of its kind."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        try:
            if path.lower().endswith(".csv"):
                table = csv.DictReader(file, strict=True)
                if field not in (table.fieldnames or ()):
                    raise ValueError(f"its first line has no column {field!r}; it has {table.fieldnames}")
                rows: Any = list(table)
            elif path.lower().endswith(".json"):
                rows = json.load(file)
            else:
                rows = [json.loads(line) for line in file if line.strip()]
        except (ValueError, csv.Error, RecursionError) as error:
            raise ValueError(f"{path}: {error}") from error
    if not isinstance(rows, list):
        raise ValueError(f"{path}: it holds a {type(rows).__name__}, and a list of rows is wanted")
    folder = os.path.dirname(path)
    return [_beside(row, folder, field) for row in rows]


def _beside(row: Any, folder: str, field: str) -> Any:
    """A relative path is that of the file's folder."""
    url = row.get(field) if isinstance(row, dict) else row
    if not isinstance(url, str) or ":" in url.partition("/")[0]:
        return row
    url = os.path.join(folder, url) if url else url
    return {**row, field: url} if isinstance(row, dict) else url


def _row(row: Any, number: int, field: str) -> Dict[str, Any]:
    """Raises ``TypeError`` and ``ValueError`` with the number of the row."""
    found = dict(row) if isinstance(row, Mapping) else {field: row}
    if field not in found:
        raise ValueError(f"row {number} has no {field!r}; it has {', '.join(map(repr, found))}")
    url = found[field] = os.fspath(found[field]) if isinstance(found[field], os.PathLike) else found[field]
    if not isinstance(url, str):
        raise TypeError(f"row {number}: {field!r} takes a path or a URL as text; got {type(url).__name__}")
    if not url:
        raise ValueError(f"row {number}: {field!r} is empty")
    try:
        os.fsencode(url)
    except UnicodeEncodeError:
        raise ValueError(f"row {number}: {field!r} has a character that no path and no URL can have") from None
    odd = [key for key in found if not isinstance(key, str) or (key in _KEPT and not isinstance(found[key], str))]
    if odd:
        raise TypeError(f"row {number}: the names of fields are texts, and so are __key__ and __url__; got {odd[0]!r}")
    if is_live(url):
        raise ValueError(
            f"row {number}: {shown_clip(url)} is a live stream or a camera, of which no frame can be asked for by number: "
            "fb.Clips.stream(url) gives its frames as they come"
        )
    return found
