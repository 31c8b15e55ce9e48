"""Letters: glyphs drawn as the digits were, for data whose classes are characters.

Near out-of-distribution for digits: the same pen, box and ink, another alphabet. Each letter
borrows the box and the amount of ink of one validation image, so that neither place, size, mean
intensity nor an empty border tells it from a digit.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from scipy.ndimage import distance_transform_edt

from bench.registry import DATASETS
from bench.types import Array, Dataset

from .making import as_float, generator, made

# Left out for looking like a digit when drawn in 8x8 pixels: C D G O Q U a c e o u (0, 6),
# I J i j l (1), T Y y (7, 4), Z z (2), S s (5), b (6), B (8), g q p P d (9, 6 or their mirror
# images), and lower case that only repeats the capital (v w x).
LETTERS = "AEFHKLMNRVWXfhkmnrt"
FONTS = (
    "DejaVuSans.ttf",
    "DejaVuSans-Bold.ttf",
    "DejaVuSans-Oblique.ttf",
    "DejaVuSansMono.ttf",
    "DejaVuSerif.ttf",
    "DejaVuSerif-Italic.ttf",
)
CELLS = 4  # a pixel counts the ink in CELLS x CELLS dots, as in UCI's digits
MOST_INK = 0.6  # of the box; a letter with more of it cannot be read


@DATASETS.register("letters", ood="near", reuses_images=False)
def letters(
    split: str = "test", root: Path | None = None, *, like: Dataset, n: int = 500, seed: int = 0
) -> Dataset:
    """Return letters in DejaVu fonts with boxes and ink like those of validation images.

    A glyph is stretched to the bounding box of a random validation image (pixels that are not
    black in the mean over channels), on a grid of 4x4 dots a pixel. Dots in the order of their
    signed distance to the glyph are inked until the mean intensity is that of the same validation
    image, which makes strokes as thick as its strokes. A pixel is the share of its dots with ink;
    all channels are equal. The cluster is the letter.
    """
    grey = as_float(like.images).mean(axis=1)
    draws = generator(seed, "letters").random((max(n, 0), 3))
    which, font, model = (draws * (len(LETTERS), len(FONTS), len(grey))).astype(np.int64).T
    drawn = [
        _draw(LETTERS[a], FONTS[b], grey[c])
        for a, b, c in zip(which.tolist(), font.tolist(), model.tolist(), strict=True)
    ]
    images = np.repeat(np.array(drawn).reshape(-1, 1, *like.shape[1:]), like.shape[0], axis=1)
    return made(
        "letters",
        split,
        images,
        asked=n,
        like=like,
        clusters=which,
        licence="drawn with DejaVu fonts (Bitstream Vera licence)",
        source=f"letters {LETTERS} in DejaVu fonts, box and ink as in {like.name} validation",
        note=f"{len(LETTERS)} letters, none that looks like a digit",
    )


def _draw(letter: str, font: str, model: Array) -> Array:
    """Return the letter ``(H, W)`` in the box and with the mean intensity of ``model``."""
    top, bottom, left, right = _box(model)
    height, width = (bottom - top) * CELLS, (right - left) * CELLS
    glyph = _glyph(letter, font).resize((width, height), Image.Resampling.BILINEAR)
    inside = np.asarray(glyph) >= 128
    # Positive outside, negative inside: thin letters grow, thick ones shrink.
    distance = distance_transform_edt(~inside) - distance_transform_edt(inside)
    ink = min(model.sum(dtype=np.float64) / ((bottom - top) * (right - left)), MOST_INK)
    dots = np.zeros(height * width)
    dots[distance.ravel().argsort(kind="stable")[: round(ink * dots.size)]] = 1
    image = np.zeros(model.shape)
    cells = dots.reshape(bottom - top, CELLS, right - left, CELLS)
    image[top:bottom, left:right] = cells.mean(axis=(1, 3))
    return image


def _box(image: Array) -> tuple[int, int, int, int]:
    """Return top, bottom, left, right of what is not black; all of a black image."""
    rows, columns = (np.flatnonzero(image.any(axis=a)) for a in (1, 0))
    if len(rows) == 0:
        return 0, image.shape[0], 0, image.shape[1]
    return int(rows[0]), int(rows[-1]) + 1, int(columns[0]), int(columns[-1]) + 1


@cache
def _glyph(letter: str, font: str) -> Image.Image:
    """Return the letter as a grey image cut to its own bounding box."""
    import matplotlib

    file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / font
    face = ImageFont.truetype(str(file), 96)
    picture = Image.new("L", (192, 192))
    ImageDraw.Draw(picture).text((32, 32), letter, fill=255, font=face)
    return picture.crop(picture.getbbox())
