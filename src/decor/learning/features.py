"""Features of images that no data were used to make: they cost no privacy.

docs/guarantees.md, "Features without data", has the proof.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from decor.errors import InputError
from decor.progress import report

ANGLES = 8
CELL = 4
"""Width in pixels of the cells that moduli are averaged over."""
MAPS = 1 + 2 * ANGLES + ANGLES**2
"""The image, moduli of fine and of coarse waves, and of coarse waves of the fine moduli."""
_ORDERS = (slice(1, 1 + ANGLES), slice(1 + ANGLES, 1 + 2 * ANGLES), slice(1 + 2 * ANGLES, MAPS))
"""Moduli of fine waves, of coarse waves, and of coarse waves of fine moduli."""
_BORDER = 2
"""Pixels of zeros around an image, because transforms take its edges to be neighbours."""
_SMALLEST, _LARGEST = 8, 512
_REPORTED = 512
"""Images between two reports of progress."""


def scattering(images: Any) -> Tensor:
    """Scattering features: averages of an image, of its waves, and of the waves of these.

    Fixed wavelets of two scales and eight angles give, for each cell of four by four pixels, 81
    averages: of the image, of the moduli of its 16 convolutions, and of the moduli of the coarse
    convolutions of the eight fine moduli. Of each its root is taken. Each of the 81 maps is
    normalised, and so is what each order has beyond its mean at a place, which most images have in
    common. The whole has length one (zero for an image of zeros). A linear model on it is far
    better than one on pixels.

    Args:
        images: Grey images between 0 and 1, [images, height, width]: an array or a tensor.

    Returns:
        Features in float32, [images, 81 * cells]; 5,184 for an image of 28 by 28 pixels.

    Raises:
        InputError: If these are no images of numbers, or sides are not between 8 and 512 pixels.

    Guarantee: a row depends on its own image alone, to the last bit: each is transformed by itself,
    and nothing is fitted to data. So adding, removing or changing an image changes no other row,
    and the guarantee of a plan, for examples or for users, holds for what is trained on features.
    """
    pixels = _pixels(images)
    count, height, width = pixels.shape
    tall, wide = (-(-(side + 2 * _BORDER) // CELL) * CELL for side in (height, width))
    features = torch.empty(count, MAPS * (tall // CELL) * (wide // CELL))
    waves = _Waves.of(tall, wide)
    margins = (_BORDER, wide - width - _BORDER, _BORDER, tall - height - _BORDER)
    before = torch.get_num_threads()
    # transforms of one image are too small for a second thread
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            # one at a time: in a batch, roundings could depend on an image's place in it
            for k in range(count):
                image = functional.pad(torch.from_numpy(pixels[k]), margins)
                features[k] = _normalise(waves.maps(image))
                if k % _REPORTED == 0:
                    report("computing scattering features", k, count)
    finally:
        torch.set_num_threads(before)
    return features


class _Waves:
    """Wavelets for images of one size, as Fourier coefficients, and matrices that average."""

    def __init__(self, height: int, width: int) -> None:
        fine, coarse = (
            torch.stack(
                [_wavelet(height, width, scale, k * math.pi / ANGLES) for k in range(ANGLES)]
            )
            for scale in (1, 2)
        )
        self.fine = fine.float()
        # complex coefficients are multiplied as pairs of reals
        self.folded = [(part / 4).float().unsqueeze(-1) for part in _quarters(coarse)]
        self.rows, self.columns = (
            {step: _averaging(side, step) for step in (1, 2)} for side in (height, width)
        )

    @classmethod
    @cache
    def of(cls, height: int, width: int) -> _Waves:
        return cls(height, width)

    def maps(self, image: Tensor) -> Tensor:
        """All averages of an image, [81, cells down, cells across]."""
        spectrum = torch.fft.fft2(image)
        fine = torch.fft.ifft2(spectrum * self.fine).abs()
        coarse = self._coarse(spectrum)
        second = self._coarse(torch.fft.fft2(fine)).flatten(0, 1)
        parts = [
            self._averages(image[None], 1),
            self._averages(fine, 1),
            self._averages(coarse, 2),
            self._averages(second, 2),
        ]
        return torch.cat(parts)

    def _coarse(self, spectrum: Tensor) -> Tensor:
        """Moduli of coarse waves at every second pixel: [..., height, width] to [..., 8, h, w].

        Leaving out every second pixel adds up the quarters of the spectrum, so transforms are of a
        quarter of the size.
        """
        total: Tensor | None = None
        for part, filters in zip(_quarters(spectrum), self.folded, strict=True):
            pairs = torch.view_as_real(part.contiguous()).unsqueeze(-4)
            total = pairs * filters if total is None else total.addcmul_(pairs, filters)
        assert total is not None
        moduli: Tensor = torch.fft.ifft2(torch.view_as_complex(total)).abs()
        return moduli

    def _averages(self, maps: Tensor, step: int) -> Tensor:
        return self.rows[step] @ maps @ self.columns[step].T


def _pixels(images: Any) -> Any:
    """The images as a float32 array."""
    try:
        pixels = np.asarray(images.numpy(force=True) if isinstance(images, Tensor) else images)
        pixels = np.ascontiguousarray(pixels, dtype=np.float32)
    except (TypeError, ValueError):
        raise InputError(
            "images are no numbers of one shape; give an array [images, height, width]"
        ) from None
    if pixels.ndim != 3 or not all(_SMALLEST <= side <= _LARGEST for side in pixels.shape[1:]):
        raise InputError(
            f"images have the shape {list(pixels.shape)}; give [images, height, width] with sides "
            f"from {_SMALLEST} to {_LARGEST} pixels"
        )
    return pixels


def _normalise(maps: Tensor) -> Tensor:
    # averages of moduli are at least zero but for roundings; a root brings weak ones forward
    maps = _normalise_maps(maps.clamp_(min=0).sqrt_())
    for order in _ORDERS:
        maps[order] -= maps[order].mean(0)
    flat = _normalise_maps(maps).flatten()
    length = torch.linalg.vector_norm(flat)
    return flat / length if length > 0 else flat


def _normalise_maps(maps: Tensor) -> Tensor:
    """Each map with mean zero and deviation one, or less if it is nearly the same everywhere."""
    return functional.group_norm(maps[None], MAPS)[0]


def _frequencies(height: int, width: int) -> tuple[Tensor, Tensor]:
    down, across = (
        2 * math.pi * torch.fft.fftfreq(side, dtype=torch.float64) for side in (height, width)
    )
    return down[:, None], across[None]


def _wavelet(height: int, width: int, scale: int, angle: float) -> Tensor:
    """Fourier coefficients of a Morlet wavelet, which has no mean."""
    down, across = _frequencies(height, width)
    along = across * math.cos(angle) + down * math.sin(angle)
    aside = down * math.cos(angle) - across * math.sin(angle)
    spread, slant, centre = 0.8 * scale, 0.5, 2.36 / scale

    def bump(middle: float) -> Tensor:
        return torch.exp(-(spread**2) / 2 * ((along - middle) ** 2 + (aside / slant) ** 2))

    wave = bump(centre)
    return wave - wave[0, 0] * bump(0.0)


def _quarters(spectrum: Tensor) -> list[Tensor]:
    """The four quarters of [..., height, width]."""
    return [part for half in spectrum.chunk(2, -2) for part in half.chunk(2, -1)]


def _averaging(side: int, step: int) -> Tensor:
    """Averages values at every `step`-th pixel of a side, around the middle of each cell."""
    frequencies = 2 * math.pi * torch.fft.fftfreq(side, dtype=torch.float64)
    kernel = torch.fft.ifft(torch.exp(-(1.6**2) / 2 * frequencies**2)).real
    middles = CELL // 2 + CELL * torch.arange(side // CELL)
    places = torch.arange(0, side, step)
    weights: Tensor = step * kernel[(middles[:, None] - places[None]) % side]
    return weights.float()
