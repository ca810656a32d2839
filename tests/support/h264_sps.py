"""An H.264 clip whose header keeps silent about how far its frames are reordered, as cameras and old encoders write it."""

from __future__ import annotations

__all__ = ["without_usability_information"]

_HIGH = (100, 110, 122, 244, 44, 83, 86, 118, 128)  # profiles whose header begins with the chroma format


def without_usability_information(clip: bytes) -> bytes:
    """``clip``, an MP4 with one sequence parameter set of one (in avcC), with its VUI switched off (7.3.2.1.1); no byte moves."""
    at = clip.index(b"avcC") + 4 + 6
    size = int.from_bytes(clip[at : at + 2], "big")
    found = clip[at + 2 : at + 2 + size]
    bits = _Bits(found)
    place = _place_of_flag(bits)
    assert bits.at(place) == 1
    assert b"\0\0\3" not in found[: place // 8 + 1], "emulation prevention would shift the bits"
    text = bits.text[:place] + "01"
    changed = int(text.ljust(8 * size, "0"), 2).to_bytes(size, "big")
    return clip[: at + 2] + changed + clip[at + 2 + size :]


class _Bits:
    def __init__(self, data: bytes) -> None:
        self.text = "".join(f"{byte:08b}" for byte in data)
        self.place = 0

    def at(self, place: int) -> int:
        return int(self.text[place])

    def take(self, count: int) -> int:
        self.place += count
        return int(self.text[self.place - count : self.place], 2)

    def golomb(self) -> int:
        zeros = self.text.index("1", self.place) - self.place
        self.place += zeros
        return self.take(zeros + 1) - 1


def _place_of_flag(bits: _Bits) -> int:
    """Of vui_parameters_present_flag."""
    bits.take(8)
    profile = bits.take(8)
    bits.take(16)
    bits.golomb()
    if profile in _HIGH:
        assert bits.golomb() == 1, "4:2:0"
        bits.golomb(), bits.golomb()
        assert bits.take(2) == 0, "no lossless coding, no matrices"
    bits.golomb()
    kind = bits.golomb()
    assert kind in (0, 2)
    if kind == 0:
        bits.golomb()
    bits.golomb()
    bits.take(1)
    bits.golomb(), bits.golomb()
    assert bits.take(1) == 1, "frames, not fields"
    bits.take(1)
    if bits.take(1):
        [bits.golomb() for _ in range(4)]
    return bits.place
