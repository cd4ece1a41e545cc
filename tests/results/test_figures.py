"""The figures as files: right marks, right numbers, the same bytes every time."""

import itertools

import numpy as np
import pytest
import sample
from matplotlib.figure import Figure
from matplotlib.image import imread

from decor.errors import InputError
from decor.results import figures
from decor.results.figures import comparison_figure, curves_figure, users_figure
from decor.results.palette import HUES, styles

DRAW = {
    "comparison": lambda path: comparison_figure(sample.diverged(), "accuracy", path),
    "loss": lambda path: comparison_figure(sample.comparison(), "loss", path),
    "curves": lambda path: curves_figure(sample.diverged(), "loss", path, 1.0),
    "single": lambda path: curves_figure(sample.single(), "accuracy", path),
    "users": lambda path: users_figure(sample.star(), "DECOR star", path, 10.0),
    "large": lambda path: users_figure(sample.large(), "DECOR star", path),
    "hostile": lambda path: comparison_figure(sample.hostile(), "accuracy", path),
}


@pytest.fixture
def axes(monkeypatch):
    """The axes of what was drawn last."""
    seen = []
    original = Figure.savefig

    def savefig(self, *args, **kwargs):
        seen[:] = [self.axes[0]]
        return original(self, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return seen


@pytest.mark.parametrize("suffix", ["png", "svg"])
@pytest.mark.parametrize("name", DRAW)
def test_a_figure_is_the_same_file_every_time(name, suffix, tmp_path):
    for k in range(2):
        DRAW[name](tmp_path / f"{k}.{suffix}")
    first = (tmp_path / f"0.{suffix}").read_bytes()
    assert first == (tmp_path / f"1.{suffix}").read_bytes()
    if suffix == "png":
        assert imread(tmp_path / "0.png")[..., :3].std() > 0.05
    else:
        assert b"<svg" in first and b"dc:date" not in first


def test_error_bars_are_standard_errors_around_means(axes, tmp_path):
    data = sample.comparison()
    comparison_figure(data, "accuracy", tmp_path / "a.png")
    bars = {c.get_label(): c for c in axes[0].containers}
    own = [o for o in data["outcomes"] if o["method"] == "DECOR torus"]
    line, _, (verticals,) = bars["DECOR torus"]
    values = np.array([o["final"]["accuracy"] for o in own]) * 100
    assert np.allclose(line.get_ydata(), values.mean(axis=1)) and np.allclose(
        line.get_xdata(), sample.EPSILONS
    )
    ends = np.array([s[:, 1] for s in verticals.get_segments()])
    assert np.allclose((ends[:, 1] - ends[:, 0]) / 2, values.std(axis=1, ddof=1) / 2)
    assert line.get_color() == styles(data)[1].light


def test_no_privacy_is_a_dashed_line_across(axes, tmp_path):
    data = sample.comparison()
    comparison_figure(data, "loss", tmp_path / "a.png")
    (level,) = [line for line in axes[0].lines if line.get_label() == "No privacy"]
    assert level.get_linestyle() == "--"
    assert np.allclose(level.get_ydata(), np.mean(data["outcomes"][-1]["final"]["loss"]))


def test_what_diverged_is_a_cross_and_what_lost_seeds_is_hollow(axes, tmp_path):
    comparison_figure(sample.diverged(), "accuracy", tmp_path / "a.png")
    crosses = [line for line in axes[0].lines if line.get_marker() == "x"]
    hollow = [line for line in axes[0].lines if line.get_markerfacecolor() == "white"]
    assert [list(line.get_xdata()) for line in crosses] == [[1.0]]
    assert [list(line.get_xdata()) for line in hollow] == [[3.0]]


def test_a_curve_is_the_mean_over_seeds_at_the_epsilon_asked_for(axes, tmp_path):
    data = sample.comparison()
    curves_figure(data, "accuracy", tmp_path / "a.png", 10.0)
    drawn = {line.get_label(): line.get_ydata() for line in axes[0].lines}
    assert list(drawn) == [method["name"] for method in data["methods"]]
    wanted = next(
        o for o in data["outcomes"] if o["method"] == "DECOR ring" and o["epsilon"] == 10.0
    )
    assert np.allclose(drawn["DECOR ring"], 100 * np.mean(wanted["curve"]["accuracy"], axis=0))


def test_every_user_is_coloured_by_its_epsilon(axes, tmp_path):
    data = sample.star()
    users_figure(data, "DECOR star", tmp_path / "a.png", 10.0)
    dots = axes[0].collections[-1]
    assert np.allclose(dots.get_array(), data["outcomes"][1]["per_user_epsilon"])


def test_an_infinite_epsilon_is_drawn_as_a_level_and_a_dollar_is_a_dollar(axes, tmp_path):
    data = sample.star()
    data["outcomes"][1]["epsilon"] = "inf"
    data["methods"][0]["name"] = data["outcomes"][0]["method"] = data["outcomes"][1]["method"] = (
        "_$x_1$ 漢"
    )
    comparison_figure(data, "accuracy", tmp_path / "a.svg")
    names = [thing.get_label() for thing in (*axes[0].lines, *axes[0].containers)]
    assert r" _\$x_1\$ 漢, epsilon ∞" in names and r" _\$x_1\$ 漢" in names


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda p: comparison_figure(sample.star(), "speed", p / "a.png"), "accuracy, loss"),
        (lambda p: comparison_figure(sample.star(), "accuracy", p / "a.pdf"), ".png or .svg"),
        (
            lambda p: comparison_figure(sample.star(), "accuracy", p / "no" / "a.png"),
            "cannot be written",
        ),
        (lambda p: curves_figure(sample.star(), "accuracy", p / "a.png", 2.0), "choose from 1, 10"),
        (lambda p: users_figure(sample.comparison(), "Central DP", p / "a.png"), "Central DP"),
        (lambda p: users_figure(sample.comparison(), "nobody", p / "a.png"), "nobody"),
        (lambda p: comparison_figure({}, "accuracy", p / "a.png"), "not report data"),
    ],
)
def test_what_cannot_be_drawn_is_a_typed_error(call, named, tmp_path):
    with pytest.raises(InputError) as caught:
        call(tmp_path)
    assert named in str(caught.value)


def test_no_curve_at_all_is_a_typed_error(tmp_path):
    data = sample.single()
    data["outcomes"][0]["curve"] = None
    with pytest.raises(InputError, match="has a curve"):
        curves_figure(data, "accuracy", tmp_path / "a.png")


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
def test_colours_are_told_apart_by_everybody(scheme, ground, eyes):
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


def test_every_mark_of_the_page_has_its_marker():
    from decor.results.palette import MARKS

    assert {mark for marks in MARKS.values() for mark in marks} == set(figures.MARKERS)
