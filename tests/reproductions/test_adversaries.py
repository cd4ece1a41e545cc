"""The study "adversaries": protection against stronger adversaries, and its cost."""

import pytest

import decor
from decor.reproductions import adversaries
from decor.reproductions.tuned_curve import default_ratio

COLUMNS = [
    "epsilon_eavesdropper",
    "epsilon_curious",
    "epsilon_colluding_2",
    "epsilon_colluding_3",
    "epsilon_everyone",
]


@pytest.fixture(scope="module")
def rows():
    """The torus with designed gossip and both ends; the other graphs' cells are like these."""
    whole = adversaries.study(quick=True)
    cells = [c for c in whole.cells if c.arguments["graph"] in (None, "torus")]
    return [r for c in cells for r in c.work(**c.arguments)]


def by_method(rows, epsilon):
    return {r["method"]: r for r in rows if r["epsilon"] == epsilon}


def test_a_stronger_adversary_never_has_a_smaller_epsilon(rows):
    for r in rows:
        left = [r[c] for c in COLUMNS]
        assert left == sorted(left)


def test_every_plan_spends_its_budget_on_the_adversary_it_is_made_for(rows):
    for r in rows:
        made_for = r["against"] or ("everyone" if r["kind"] == "local" else None)
        spent = r[f"epsilon_{made_for.replace(':', '_')}"] if made_for else r["accounted_epsilon"]
        assert 0.9999 * r["epsilon"] < spent <= r["epsilon"]


def test_a_plan_leaves_more_than_its_budget_against_somebody_stronger(rows):
    for r in rows:
        if r["kind"] == "decor":
            stronger = COLUMNS[adversaries.AGAINST.index(r["against"]) + 1 :]
            assert all(r[c] > 1.001 * r["epsilon"] for c in stronger)


def test_central_dp_hides_nothing_from_an_eavesdropper(rows):
    for r in rows:
        if r["kind"] == "central":
            assert (
                r["epsilon_eavesdropper"] == pytest.approx(r["epsilon_everyone"])
                and r["epsilon_everyone"] > 5 * r["epsilon"]
            )


def test_more_colluders_take_more_independent_noise(rows):
    for epsilon in (3.0, 40.0):
        own = by_method(rows, epsilon)
        noise = [
            own[m]["sigma_cdp"]
            for m in ("central DP", *(f"DECOR torus, {a}" for a in adversaries.AGAINST), "local DP")
        ]
        assert noise == sorted(noise)
        assert noise[1] == pytest.approx(noise[0], rel=0.01)
        # q colluders take their noise with them: n - q users are left to hide among
        for q, found in enumerate(noise[1:5]):
            assert found == pytest.approx(noise[-1] / (16 - q) ** 0.5, rel=0.01)


def test_on_the_same_noise_more_colluders_are_never_cheaper_and_always_cheaper_than_local_dp(rows):
    """At the same step size: the one that is chosen may differ."""
    own = by_method(rows, 40.0)
    decors = [own[f"DECOR torus, {a}"] for a in adversaries.AGAINST]
    assert len({r["learning_rate"] for r in decors}) == 1
    values = [r["value"] for r in decors]
    assert values == sorted(values)
    assert values[-1] < own["local DP"]["value"] / 5
    assert values[0] == pytest.approx(own["central DP"]["value"], rel=0.02)


def test_the_usual_ratio_grows_with_the_colluders():
    topology, gossip = adversaries.GRAPHS["torus, one plain round"]
    ratios = [
        default_ratio(topology, adversaries.STEPS, decor.Adversary.parse(a), **gossip)
        for a in adversaries.AGAINST
    ]
    assert ratios == sorted(ratios)
    assert ratios[0] == default_ratio(topology, adversaries.STEPS, **gossip)


def test_no_coalition_of_the_study_can_isolate_anybody():
    assert all(topology.degrees.min() > 3 for topology, _ in adversaries.GRAPHS.values())


def test_every_line_of_the_table_is_its_own():
    names = [c.name for c in adversaries.study().cells]
    assert len(set(names)) == len(names) == 2 + len(adversaries.GRAPHS) * len(adversaries.AGAINST)


def test_lines_are_labelled_by_adversary(rows):
    labels = [s.label for panel in adversaries.panels(rows) for s in panel.series]
    assert labels == ["central DP", *(f"DECOR, {a}" for a in adversaries.AGAINST), "local DP"]
