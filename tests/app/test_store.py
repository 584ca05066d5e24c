"""What may be dropped on the page."""

import io
import warnings
import zlib

import numpy as np
import pytest
from PIL import Image

from tailprop.app import store
from tailprop.app.store import SAMPLES, Photographs, decode
from tailprop.data.images import suppress_pillow_warnings


def encoded(image: Image.Image, kind: str = "PNG", **how: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **how)
    return buffer.getvalue()


def test_an_image_is_upright_and_keeps_its_mode() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # stored lying on its side
    photo = decode(encoded(Image.new("L", (20, 10), 7), "JPEG", exif=exif.tobytes()), "photo.jpg")
    assert (photo.image.size, photo.image.mode) == ((10, 20), "L")
    assert photo.rgb.mode == "RGB"
    assert decode(encoded(Image.new("RGBA", (4, 4))), "a.png").image.mode == "RGBA"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "x.png is empty"),
        (b"hello", "x.png is not an image of a known format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EOF", "x.png is not an image of a known format"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "x.png is not an image of a known format"),
        (encoded(Image.new("L", (20_000, 1))), "x.png is 20000 x 1 px; the page takes up to 12000 px a side"),
        (encoded(Image.new("1", (9000, 9000))), "x.png is 9000 x 9000 px; .* 64 megapixels"),
        (encoded(Image.new("RGB", (64, 64)), "BMP")[:2000], "x.png cannot be read: "),
    ],
)
def test_what_is_no_photograph_is_refused_in_one_line(data: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        decode(data, "x.png")
    assert "\n" not in str(error.value)


def test_a_bomb_is_refused_by_its_header() -> None:
    header = bytearray(encoded(Image.new("L", (1, 1))))
    header[16:24] = (60_000).to_bytes(4, "big") * 2
    header[29:33] = zlib.crc32(header[12:29]).to_bytes(4, "big")
    with suppress_pillow_warnings(), pytest.raises(ValueError, match="has too many pixels"):
        decode(bytes(header), "x.png")


def test_old_images_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_KEPT_PIXELS", 250)
    photos, data = Photographs(), encoded(Image.fromarray(np.zeros((10, 10), np.uint8)))
    keys = [photos.add(data, "a.png")[0] for _ in range(3)]
    with pytest.raises(ValueError, match="drop it again"):
        photos.get(keys[0])
    assert photos.get(keys[2]).image.size == (10, 10)
    assert len(set(keys)) == 3
    assert photos.add(data, "n" * 500)[1].name == "n" * 120


def test_samples_are_installed_with_scikit_image() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in SAMPLES:
            assert min(Photographs().get(name).image.size) >= 300, name
