"""``resize`` and ``min_side``: sizes, formats, what keeps its bytes, and pictures that are none or far too large."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import pytest

pytest.importorskip("PIL", reason="the pictures' steps need Pillow")

from PIL import Image, ImageOps

from forebay_stage.errors import SampleFailed
from forebay_stage.steps import applied, step_of


def picture(width: int, height: int, kind: str = "JPEG", mode: str = "RGB", **options: Any) -> bytes:
    """Left half red, right half blue, where it has colours."""
    image = Image.new("RGB", (width, height), (255, 0, 0))
    image.paste((0, 0, 255), (width // 2, 0, width, height))
    room = io.BytesIO()
    image.convert(mode).save(room, kind, **options)
    return room.getvalue()


def turned(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def made(step: str, **fields: bytes) -> dict[str, Any]:
    [sample] = applied([step_of(step)], {"__key__": "a", "__url__": "s.tar", **fields})
    return {name: value for name, value in sample.items() if not name.startswith("__")}


def opened(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


def failure(step: str, **fields: bytes) -> str:
    with pytest.raises(SampleFailed) as caught:
        made(step, **fields)
    return caught.value.cause


@pytest.mark.parametrize(
    ("step", "size"),
    [
        ("resize,side=60", (120, 60)),
        ("resize,longest=60", (60, 30)),
        ("resize,side=60,longest=100", (100, 50)),
        ("resize,90,longest=90", (90, 45)),
        ("resize,side=1", (2, 1)),
    ],
)
def test_sizes(step: str, size: tuple[int, int]) -> None:
    """``side`` bounds the shorter side, ``longest`` the longer one; the proportions stay."""
    assert opened(made(step, jpg=picture(400, 200))["jpg"]).size == size


def test_other_fields_and_their_order_stay() -> None:
    """What is no picture is left alone, and every field keeps its place."""
    sample = made("resize,side=60", txt=b"text", jpg=picture(400, 200), json=b"{}")
    assert list(sample) == ["txt", "jpg", "json"]
    assert (sample["txt"], sample["json"]) == (b"text", b"{}")


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_a_picture_that_fits_keeps_its_bytes(kind: str) -> None:
    """No picture is encoded again without need, and none is made larger; ``quality`` asks for it."""
    name = {"JPEG": "jpg"}.get(kind, kind.lower())
    data = picture(40, 20, kind)
    assert made("resize,side=60", **{name: data}) == {name: data}
    if kind != "PNG":
        assert made("resize,side=60,quality=30", **{name: data})[name] != data


@pytest.mark.parametrize(("format", "kind"), [("jpg", "JPEG"), ("png", "PNG"), ("webp", "WEBP")])
def test_formats(format: str, kind: str) -> None:
    """``format`` says what is written, under its own extension; a BMP becomes a JPEG unless it says so."""
    sample = made(f"resize,side=60,format={format}", **{"left.bmp": picture(400, 200, "BMP")})
    assert list(sample) == [f"left.{format}"]
    assert opened(sample[f"left.{format}"]).format == kind
    assert list(made("resize,side=60", bmp=picture(400, 200, "BMP"))) == ["jpg"]


def test_the_extension_says_the_format() -> None:
    """A PNG under the name of a JPEG becomes a JPEG; ``jpeg`` keeps its name."""
    assert opened(made("resize,side=60", jpeg=picture(40, 20, "PNG"))["jpeg"]).format == "JPEG"


def test_a_name_that_is_taken_fails() -> None:
    """Two pictures never become one field."""
    assert "take the place of the field 'jpg'" in failure("resize,side=60,format=jpg", jpg=picture(40, 20), png=picture(40, 20, "PNG"))
    assert "take the place of the field 'jpg'" in failure("resize,side=60,format=jpg", png=picture(40, 20, "PNG"), jpg=picture(40, 20))


def test_field_names_the_one_that_is_meant() -> None:
    """A mask beside its picture is spared."""
    mask = picture(400, 200, "PNG")
    sample = made("resize,side=60,field=jpg", jpg=picture(400, 200), **{"mask.png": mask})
    assert sample["mask.png"] == mask
    assert opened(sample["jpg"]).size == (120, 60)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_honoured(kind: str, orientation: int) -> None:
    """What comes out stands upright and needs no EXIF data, whether it was made smaller or not."""
    data = picture(96, 32, kind, exif=turned(orientation))
    upright = ImageOps.exif_transpose(opened(data)).convert("RGB")
    name = {"JPEG": "jpg"}.get(kind, kind.lower())
    for side, factor in ((32, 1), (16, 2)):
        found = opened(made(f"resize,side={side}", **{name: data})[name])
        assert found.getexif().get(0x0112, 1) == 1
        assert found.size == (upright.width // factor, upright.height // factor)
        for x in (found.width // 5, found.width * 4 // 5):
            for y in (found.height // 5, found.height * 4 // 5):
                is_red = [
                    pixel[0] > pixel[2] for pixel in (found.convert("RGB").getpixel((x, y)), upright.getpixel((x * factor, y * factor)))
                ]
                assert is_red[0] == is_red[1]


def test_transparency_becomes_white_in_a_jpeg() -> None:
    """A JPEG shows white through transparent pixels; WebP and PNG keep them."""
    room = io.BytesIO()
    Image.new("RGBA", (80, 80), (0, 0, 0, 0)).save(room, "PNG")
    assert opened(made("resize,side=40,format=jpg", png=room.getvalue())["jpg"]).getpixel((9, 9)) == (255, 255, 255)
    assert opened(made("resize,side=40", png=room.getvalue())["png"]).getpixel((9, 9)) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("kind", "mode"), [("PNG", "1"), ("PNG", "L"), ("PNG", "LA"), ("PNG", "P"), ("JPEG", "L"), ("JPEG", "CMYK"), ("GIF", "P")]
)
def test_modes(kind: str, mode: str) -> None:
    """Pictures of every eight-bit mode are made smaller, into each format."""
    data = picture(80, 40, kind, mode)
    for written in ("jpg", "png", "webp"):
        assert opened(made(f"resize,side=20,format={written}", **{{"JPEG": "jpg"}.get(kind, kind.lower()): data})[written]).size == (40, 20)


def test_deep_pixels_are_refused() -> None:
    """A depth map of 16 bits would lose its values, so its sample fails; ``field`` spares it."""
    data = _deep()
    assert "more than 8 bits" in failure("resize,side=20", **{"depth.png": data})
    assert made("resize,side=20,field=jpg", **{"depth.png": data})["depth.png"] == data


def _deep() -> bytes:
    room = io.BytesIO()
    Image.new("I;16", (80, 40), 4096).save(room, "PNG")
    return room.getvalue()


def test_the_colour_profile_stays() -> None:
    """A profile of RGB is kept: without it the same numbers would be other colours."""
    data = picture(80, 40, icc_profile=b"a profile")
    assert opened(made("resize,side=20", jpg=data)["jpg"]).info["icc_profile"] == b"a profile"


def bomb(side: int) -> bytes:
    """A PNG whose header says ``side`` x ``side`` pixels, of which there are none."""
    head = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    parts = (head, b"IDAT" + zlib.compress(b""), b"IEND")
    return b"\x89PNG\r\n\x1a\n" + b"".join(struct.pack(">I", len(part) - 4) + part + struct.pack(">I", zlib.crc32(part)) for part in parts)


@pytest.mark.parametrize("step", ["resize,side=20", "min_side,20"])
@pytest.mark.parametrize("side", [10_000, 60_000])
def test_absurd_dimensions_are_refused(step: str, side: int) -> None:
    """Pillow's limits of what it decodes hold for every picture: what it only warns of is refused too."""
    assert "exceeds limit" in failure(step, png=bomb(side))


def test_what_is_no_picture_fails() -> None:
    """A login page, an empty file, a picture cut short, a program in PostScript: the sample fails, with the field and its size."""
    assert failure("resize,side=20", jpg=b"<html>").endswith("jpg (6 bytes): it is not a picture of a known format")
    assert "known format" in failure("resize,side=20", jpg=b"")
    assert "known format" in failure("resize,side=20", jpg=b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
    assert "truncated" in failure("resize,side=20", jpg=picture(400, 200)[:-400])


def test_same_bytes_each_time() -> None:
    """The output is a function of the input."""
    data = picture(400, 200)
    for written in ("jpg", "png", "webp"):
        assert made(f"resize,side=60,format={written}", jpg=data) == made(f"resize,side=60,format={written}", jpg=data)


def test_min_side() -> None:
    """A sample with a picture that is too small is left out; ``field`` says which one counts; one without pictures stays."""
    sample = {"__key__": "a", "__url__": "s.tar", "jpg": picture(400, 200), "icon.png": picture(16, 16, "PNG")}
    assert list(applied([step_of("min_side,200")], dict(sample))) == []
    assert list(applied([step_of("min_side,200,field=jpg")], dict(sample))) == [sample]
    assert list(applied([step_of("min_side,201,field=jpg")], dict(sample))) == []
    assert made("min_side,200", txt=b"text") == {"txt": b"text"}
