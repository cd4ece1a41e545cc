"""The figures as files: right marks, right numbers, the same bytes every time."""

import numpy as np
import pytest
import sample
from matplotlib.figure import Figure
from matplotlib.image import imread

from decor.errors import InputError
from decor.results.axes import PAPER
from decor.results.figures import comparison_figure, curves_figure, users_figure
from decor.results.palette import styles

DRAW = {
    "comparison": lambda path: comparison_figure(sample.read(sample.diverged()), "accuracy", path),
    "loss": lambda path: comparison_figure(sample.read(sample.comparison()), "loss", path),
    "curves": lambda path: curves_figure(sample.read(sample.diverged()), "loss", path, 1.0),
    "single": lambda path: curves_figure(sample.read(sample.single()), "accuracy", path),
    "users": lambda path: users_figure(sample.read(sample.star()), "DECOR star", path, 10.0),
    "large": lambda path: users_figure(sample.read(sample.large()), "DECOR star", path),
    "hostile": lambda path: comparison_figure(sample.read(sample.hostile()), "accuracy", path),
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
    comparison_figure(sample.read(data), "accuracy", tmp_path / "a.png")
    bars = {c.get_label(): c for c in axes[0].containers}
    own = [o for o in data["outcomes"] if o["method"] == "DECOR torus"]
    line, _, (verticals,) = bars["DECOR torus"]
    values = np.array([o["final"]["accuracy"] for o in own]) * 100
    assert np.allclose(line.get_ydata(), values.mean(axis=1)) and np.allclose(
        line.get_xdata(), sample.EPSILONS
    )
    ends = np.array([s[:, 1] for s in verticals.get_segments()])
    assert np.allclose((ends[:, 1] - ends[:, 0]) / 2, values.std(axis=1, ddof=1) / 2)
    assert line.get_color() == styles(sample.read(data).methods)[1].light


def test_no_privacy_is_a_dashed_line_across(axes, tmp_path):
    data = sample.comparison()
    comparison_figure(sample.read(data), "loss", tmp_path / "a.png")
    (level,) = [line for line in axes[0].lines if line.get_label() == "No privacy"]
    assert level.get_linestyle() == "--"
    assert np.allclose(level.get_ydata(), np.mean(data["outcomes"][-1]["final"]["loss"]))


def test_what_diverged_is_a_cross_and_what_lost_seeds_is_hollow(axes, tmp_path):
    comparison_figure(sample.read(sample.diverged()), "accuracy", tmp_path / "a.png")
    crosses = [line for line in axes[0].lines if line.get_marker() == "x"]
    hollow = [line for line in axes[0].lines if line.get_markerfacecolor() == PAPER]
    assert [list(line.get_xdata()) for line in crosses] == [[1.0]]
    assert [list(line.get_xdata()) for line in hollow] == [[3.0]]


def test_a_curve_is_the_mean_over_seeds_at_the_epsilon_asked_for(axes, tmp_path):
    data = sample.comparison()
    curves_figure(sample.read(data), "accuracy", tmp_path / "a.png", 10.0)
    drawn = {line.get_label(): line.get_ydata() for line in axes[0].lines}
    assert list(drawn) == [method["name"] for method in data["methods"]]
    wanted = next(
        o for o in data["outcomes"] if o["method"] == "DECOR ring" and o["epsilon"] == 10.0
    )
    assert np.allclose(drawn["DECOR ring"], 100 * np.mean(wanted["curve"]["accuracy"], axis=0))


def test_every_user_is_coloured_by_its_epsilon(axes, tmp_path):
    data = sample.star()
    users_figure(sample.read(data), "DECOR star", tmp_path / "a.png", 10.0)
    dots = axes[0].collections[-1]
    assert np.allclose(dots.get_array(), data["outcomes"][1]["per_user_epsilon"])


def test_an_infinite_epsilon_is_drawn_as_a_level_and_a_dollar_is_a_dollar(axes, tmp_path):
    data = sample.star()
    data["outcomes"][1]["epsilon"] = "inf"
    data["methods"][0]["name"] = data["outcomes"][0]["method"] = data["outcomes"][1]["method"] = (
        "_$x_1$ 漢"
    )
    comparison_figure(sample.read(data), "accuracy", tmp_path / "a.svg")
    names = [thing.get_label() for thing in (*axes[0].lines, *axes[0].containers)]
    assert r" _\$x_1\$ 漢, epsilon ∞" in names and r" _\$x_1\$ 漢" in names


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (
            lambda p: comparison_figure(sample.read(sample.star()), "speed", p / "a.png"),
            "accuracy, loss",
        ),
        (
            lambda p: comparison_figure(sample.read(sample.star()), "accuracy", p / "a.pdf"),
            ".png or .svg",
        ),
        (
            lambda p: comparison_figure(sample.read(sample.star()), "accuracy", p / "no" / "a.png"),
            "cannot be written",
        ),
        (
            lambda p: curves_figure(sample.read(sample.star()), "accuracy", p / "a.png", 2.0),
            "choose from 1, 10",
        ),
        (
            lambda p: users_figure(sample.read(sample.comparison()), "Central DP", p / "a.png"),
            "Central DP",
        ),
        (lambda p: users_figure(sample.read(sample.comparison()), "nobody", p / "a.png"), "nobody"),
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
        curves_figure(sample.read(data), "accuracy", tmp_path / "a.png")
