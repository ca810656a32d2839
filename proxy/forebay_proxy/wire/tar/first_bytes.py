"""What a shard's first bytes say of it: a tar, a compressed one, or something else, in words. Pure, stdlib only.

Both sides say it alike: the loader as it reads, ``forebay warm`` before it calls a shard stored. A login page with status 200 is the
commonest case.
"""

from __future__ import annotations

from typing import Optional

from forebay_proxy.wire.tar.header import BadTar, start_fault

__all__ = ["LOOK_BYTES", "MAGIC_BYTES", "compression_of", "is_named_tar", "next_step", "not_a_tar", "why_no_tar"]

LOOK_BYTES = 512  # one header
MAGIC_BYTES = 10
_TARS = (".tar", ".tgz", ".tbz", ".tbz2", ".txz", ".tzst", *(f".tar.{packed}" for packed in ("gz", "bz2", "xz", "lzma", "zst")))
_KINDS = {
    b"version https://git-lfs": "the text that Git LFS keeps in place of the file", b"<": "a web page or an error answer", b"{": "JSON",
    b"\x1f\x8b": "gzip", b"PK\x03\x04": "a zip archive", b"PAR1": "Parquet",
}  # fmt: skip
_LFS_STEP = (
    "run `git lfs pull` in the clone that it was copied from, and upload the shard itself; of a host that keeps LFS files write the URL of "
    "the file (Hugging Face: /resolve/ for /raw/)"
)
_SHOWN_BYTES = 32


def is_named_tar(name: str) -> bool:
    """Whether a shard of this name says that it is a tar, packed or not; whatever stands behind a "?" says nothing."""
    return name.partition("?")[0].lower().endswith(_TARS)


def why_no_tar(beginning: bytes) -> str:
    """In words why a shard whose first ``LOOK_BYTES`` these are (fewer: all of it) is no tar; "" where it may be one."""
    if compression_of(beginning) is not None:
        return ""
    bad = start_fault(beginning)
    return "" if bad is None else not_a_tar(bad, beginning)


def not_a_tar(bad: BadTar, beginning: bytes) -> str:
    """``bad``, of kind ``start``, in words; ``beginning`` is what the shard begins with."""
    return f"not a tar archive: {bad}{_looks_like(beginning)}"


def next_step(why: str) -> str:
    """What to do about ``why_no_tar``'s answer, where that is special."""
    return _LFS_STEP if "Git LFS" in why else ""


def compression_of(start: bytes) -> Optional[str]:
    """ "gz", "bz2", "xz", "zst", or None, from the first ``MAGIC_BYTES`` of a file."""
    if start.startswith(b"\x1f\x8b\x08"):
        return "gz"
    if start[:3] == b"BZh" and start[4:10] == b"1AY&SY":
        return "bz2"
    if start.startswith((b"\x5d\x00\x00\x80", b"\xfd7zXZ")):
        return "xz"
    return "zst" if start.startswith(b"\x28\xb5\x2f\xfd") or _is_skippable(start) else None


def _is_skippable(start: bytes) -> bool:
    """Whether a zstd frame without data begins here: pzstd puts one before each frame, seekable files end in one."""
    return start[1:4] == b"\x2a\x4d\x18" and start[0] & 0xF0 == 0x50


def _looks_like(beginning: bytes) -> str:
    if not beginning:
        return " (it holds no byte)"
    shown = f" (it begins with {beginning[:_SHOWN_BYTES]!r}"
    hint = next((text for start, text in _KINDS.items() if beginning.lstrip().startswith(start)), "")
    return f"{shown}: {hint})" if hint else f"{shown})"
