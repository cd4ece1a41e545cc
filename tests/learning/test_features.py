"""Scattering features: of each image alone, to the last bit, and made without any data."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import decor
from decor import progress
from decor.errors import InputError
from decor.learning import features

SIDE = 28


def images(count, seed=0):
    """Random blobs of different sizes, as no data set has them."""
    rng = np.random.default_rng(seed)
    rough = torch.from_numpy(rng.random((count, 1, 7, 7), dtype=np.float32))
    return torch.nn.functional.interpolate(rough, size=SIDE, mode="bilinear").squeeze(1)


def written_out(image):
    """All of it once more in float64, with plain loops and no transform of a smaller size."""
    x = np.zeros((32, 32))
    x[2:30, 2:30] = image
    w = 2 * np.pi * np.fft.fftfreq(32)
    down, across = w[:, None], w[None]

    def bump(scale, angle, centre, slant=0.5):
        along = across * np.cos(angle) + down * np.sin(angle)
        aside = down * np.cos(angle) - across * np.sin(angle)
        width = 0.8 * scale
        return np.exp(-(width**2) / 2 * ((along - centre) ** 2 + (aside / slant) ** 2))

    def waves(scale):
        for angle in np.arange(8) * np.pi / 8:
            wave = bump(scale, angle, 2.36 / scale)
            yield wave - wave[0, 0] * bump(scale, angle, 0)

    def modulus(u, wave):
        return np.abs(np.fft.ifft2(np.fft.fft2(u) * wave))

    low = np.exp(-(1.6**2) / 2 * (down**2 + across**2))
    fine, coarse = ([modulus(x, wave) for wave in waves(scale)] for scale in (1, 2))
    second = [modulus(u, wave) for u in fine for wave in waves(2)]
    every = np.fft.ifft2(np.fft.fft2(np.array([x, *fine, *coarse, *second])) * low).real
    maps = every[:, 2::4, 2::4]

    def normal(maps):
        centred = maps - maps.mean((1, 2), keepdims=True)
        return centred / np.sqrt(maps.var((1, 2), keepdims=True) + 1e-5)

    maps = normal(np.sqrt(np.maximum(maps, 0)))
    for first, last in ((1, 9), (9, 17), (17, 81)):
        maps[first:last] -= maps[first:last].mean(0)
    flat = normal(maps).flatten()
    return flat / np.linalg.norm(flat)


def test_features_are_those_written_out():
    """Coarse waves are kept at every second pixel, which changes their averages by a percent."""
    some = images(3)
    for row, image in zip(features.scattering(some).double().numpy(), some, strict=True):
        assert np.linalg.norm(row - written_out(image.double().numpy())) < 0.05
        assert np.linalg.norm(row) == pytest.approx(1, abs=1e-5)


@given(st.integers(0, 2**20), st.integers(0, 5))
def test_changing_or_removing_an_image_changes_no_other_row_by_a_bit(seed, which):
    some = images(6, seed % 7)
    before = features.scattering(some)
    changed = some.clone()
    changed[which] = images(1, seed)[0] * 1e3
    others = [k for k in range(6) if k != which]
    assert torch.equal(features.scattering(changed)[others], before[others])
    assert torch.equal(features.scattering(some[others]), before[others])


def test_features_do_not_depend_on_threads_or_on_a_second_call():
    some, before = images(4), torch.get_num_threads()
    first = features.scattering(some)
    torch.set_num_threads(2)
    try:
        again = features.scattering(some)
        assert torch.get_num_threads() == 2, "the caller's number is given back"
    finally:
        torch.set_num_threads(before)
    assert torch.equal(first, again) and not torch.equal(first[0], first[1])


def test_arrays_and_tensors_of_any_type_are_images():
    some = images(2)
    assert torch.equal(features.scattering(some.double().numpy()), features.scattering(some))
    assert decor.features.scattering(some.tolist()).dtype is torch.float32
    assert features.scattering(some).shape == (2, 81 * 8 * 8)
    assert features.scattering(np.zeros((0, 28, 28))).shape == (0, 5184)
    assert features.scattering(np.ones((1, 9, 30)) / 2).shape == (1, 81 * 4 * 9)


def test_an_image_without_anything_has_no_features_and_brightness_hardly_matters():
    assert not features.scattering(np.zeros((1, 28, 28))).any()
    some = images(1)
    assert torch.linalg.norm(features.scattering(some) - features.scattering(some / 2)) < 0.2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (np.zeros((2, 784)), r"have the shape \[2, 784\]; give \[images, height, width\]"),
        (np.zeros((2, 7, 28)), "sides from 8 to 512"),
        (np.zeros((1, 28, 513)), "sides from 8 to 512"),
        ([[1, 2], [3]], "no numbers of one shape"),
        ("text", "no numbers of one shape"),
    ],
)
def test_what_is_no_images_is_refused(wrong, said):
    with pytest.raises(InputError, match=said):
        features.scattering(wrong)


def test_progress_is_reported():
    heard = []
    with progress.listening(lambda what, share: heard.append((what, share))):
        features.scattering(images(2))
    assert heard == [("computing scattering features", 0.0)]
