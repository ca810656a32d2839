"""The end of a tar, in every format there is, cut anywhere."""

from __future__ import annotations

import io
import tarfile

import pytest

from forebay_proxy.wire.tar.end_marker import EndMarker


def archive(members: list[tuple[str, bytes]], format: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def seen(data: bytes, step: int = 1 << 20) -> bool:
    marker = EndMarker()
    for first in range(0, len(data), step):
        marker.feed(memoryview(data)[first : first + step])
    return marker.seen


def test_a_cut_inside_a_member_of_zeros_is_no_end() -> None:
    """An array of zeros looks like an end to whoever only counts zeros."""
    data = archive([("a.npy", bytes(100_000)), ("b.txt", b"b")])
    for cut in range(1024, 100_000, 512):
        assert not seen(data[:cut])


def test_what_is_no_tar_never_ends() -> None:
    """A compressed one, text, anything."""
    assert not seen(b"\x1f\x8b" + bytes(100_000))
    assert not seen(b"hello" * 10_000 + bytes(20_480))
    assert not seen(b"")


def test_a_size_in_an_extended_header_counts() -> None:
    """Members over 8 GiB have it there."""
    plain = archive([("a", b"x" * 600)], tarfile.USTAR_FORMAT)
    record = b"12 size=600\n"
    info = tarfile.TarInfo("h")
    info.type, info.size = tarfile.XHDTYPE, len(record)
    extended = info.tobuf(tarfile.USTAR_FORMAT) + record.ljust(512, b"\0")
    lying = tarfile.TarInfo("a")
    lying.size = 0
    assert seen(extended + lying.tobuf(tarfile.USTAR_FORMAT) + plain[512:])


def header_of(info: tarfile.TarInfo, format: int, at: int, field: bytes) -> bytes:
    """With ``field`` written over its place, and a right checksum."""
    header = bytearray(info.tobuf(format))
    header[at : at + len(field)] = field
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header)


def test_a_size_in_base_256_counts() -> None:
    """GNU writes large sizes so."""
    header = header_of(tarfile.TarInfo("a"), tarfile.USTAR_FORMAT, 124, b"\x80" + (600).to_bytes(11, "big"))
    assert seen(header + b"x" * 600 + bytes(424) + bytes(1024))


def test_an_old_sparse_member_is_passed_over() -> None:
    """Its map may go on in blocks of its own."""
    info = tarfile.TarInfo("a")
    info.size, info.type = 512, b"S"
    more = bytearray(512)
    more[504] = 1
    data = header_of(info, tarfile.GNU_FORMAT, 482, b"\x01") + bytes(more) + bytes(512) + b"x" * 512
    assert seen(data + bytes(1024))
    assert not seen(data[:-512] + bytes(512))


def test_bytes_behind_the_end_begin_another_archive() -> None:
    """Concatenated tars: whole only when the last one is."""
    data = archive([("a", b"1")])
    assert seen(data + data)
    assert not seen(data + data[:1024])


@pytest.mark.parametrize(("record", "whole"), [
    (b"9" * 5000 + b" size=3\n", True),
    (b"3 =" * 100_000, True),
    (b"5021 size=" + b"9" * 5010 + b"\n", False),
])  # fmt: skip
def test_a_hostile_extended_header_is_passed_over(record: bytes, whole: bool) -> None:
    """Numbers of thousands of digits, and records of no length to speak of."""
    header = tarfile.TarInfo("pax")
    header.type, header.size = tarfile.XHDTYPE, len(record)
    content = header.tobuf(tarfile.USTAR_FORMAT) + record + bytes(-len(record) % 512) + archive([("a", b"x")], tarfile.USTAR_FORMAT)
    marker = EndMarker()
    marker.feed(content)
    assert marker.seen == whole
