"""Colours that people with any kind of colour vision tell apart, in light and in dark."""

import itertools

import numpy as np
import pytest
import sample

from decor.results import figures
from decor.results.palette import HUES, MARKS, styles

# linear RGB as seen without one kind of cone (Machado, Oliveira and Fernandes 2009, severity 1)
SEEN = {
    "all cones": np.eye(3),
    "no red": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no green": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no blue": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}


def linear(colour):
    parts = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def lab(light):
    xyz = np.array(
        [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    ) @ np.clip(light, 0, 1)
    f = np.cbrt(np.maximum(xyz / [0.9505, 1, 1.089], 1e-4))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("eyes", SEEN)
@pytest.mark.parametrize(("scheme", "ground"), [(0, "#ffffff"), (1, "#161b24")])
def test_colours_differ_for_every_kind_of_colour_vision(scheme, ground, eyes):
    used = [HUES["decor"][k][scheme] for k in range(3)] + [
        HUES[kind][0][scheme] for kind in ("central", "local")
    ]
    for a, b in itertools.combinations(used, 2):
        assert np.linalg.norm(lab(SEEN[eyes] @ linear(a)) - lab(SEEN[eyes] @ linear(b))) > 15, (
            a,
            b,
        )


@pytest.mark.parametrize(("scheme", "ground"), [(0, "#ffffff"), (1, "#161b24")])
def test_colours_stand_out_from_their_ground(scheme, ground):
    weight = np.array([0.2126, 0.7152, 0.0722])
    for colour in (hue[scheme] for hues in HUES.values() for hue in hues):
        low, high = sorted((weight @ linear(colour), weight @ linear(ground)))
        assert (high + 0.05) / (low + 0.05) >= 3, colour


def test_methods_of_one_kind_share_a_family_of_colours_and_differ():
    chosen = styles(sample.read(sample.comparison()).methods)
    turns = (("decor", 0), ("decor", 1), ("central", 0), ("local", 0), ("none", 0))
    assert [s.light for s in chosen] == [HUES[kind][turn][0] for kind, turn in turns]
    assert [s.dashed for s in chosen] == [False] * 4 + [True]
    assert len({(s.light, s.mark) for s in chosen}) == 5


def test_one_colour_in_light_is_one_colour_in_dark():
    """Figures of the page are drawn in light colours, which stand for both."""
    pairs = {hue for hues in HUES.values() for hue in hues}
    assert len(pairs) == len({light for light, _ in pairs})


def test_every_mark_has_its_marker():
    assert {mark for marks in MARKS.values() for mark in marks} == set(figures.MARKERS)
