"""What can be wrong with a clip: errors that name it and its shard, and survive a DataLoader worker as their base does."""

from __future__ import annotations

from forebay_loader.base.errors import LoaderError

__all__ = ["CorruptVideo", "LeftToDemuxer", "MissingVideo", "NotScanned", "SamplingError", "UnsupportedVideo", "VideoError", "VideoTimeout"]


class VideoError(LoaderError):
    """Base of the errors of clips. ``clip`` is the name of the member or file, ``shard`` its shard, "" if there is none. The text has both,
    so neither may hold a token. An error that comes from a DataLoader worker keeps its text, and both are "".
    """

    def __init__(self, text: str = "", clip: str = "", shard: str = "") -> None:
        where = f"{clip} in {shard}" if clip and shard else clip or shard
        super().__init__(f"{where}: {text}" if where else text)
        self.what, self.clip, self.shard = text, clip, shard

    def of(self, clip: str, shard: str = "") -> VideoError:
        """The same error with its clip named, and its shard: who reads a clip's boxes sees neither, the caller does."""
        return type(self)(self.what, clip, shard)


class CorruptVideo(VideoError):
    """The bytes contradict themselves or the specification of their container: cut short, a size beyond the file, no picture."""


class UnsupportedVideo(VideoError):
    """Sound bytes that are not read here: another container than was expected, no video track, a codec without a decoder."""


class MissingVideo(VideoError):
    """There is no such clip: no file, a directory in its place, or an origin that says so (404, 410)."""


class LeftToDemuxer(UnsupportedVideo):
    """An MP4 that its own reader does not read and that FFmpeg's demuxer may: so it is tried there before anyone is told."""


class VideoTimeout(VideoError):
    """Reading or decoding a clip took longer than it was given."""


class SamplingError(VideoError):
    """A clip has not what its sampler needs. A sampler knows no names: its caller adds clip and shard,
    ``raise type(error)(error.what, clip, shard) from error``."""


class NotScanned(SamplingError):
    """Nothing is known of the clip's motion or sound: ``forebay index --video`` finds it out. No fault of the clip's."""
