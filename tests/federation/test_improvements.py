"""Hints about a federation are true."""

from dataclasses import replace

import pytest
from federation_files import TEXT

import decor
from decor.federation.federation import Federation
from decor.federation.improvements import hints, steady_ratio


def test_hints_are_true():
    federation = Federation.parse(TEXT.replace('"curious"', '"eavesdropper"'))
    said = hints(federation, most=9)
    assert ('privacy.adversary = "curious" holds that to 3') in said[
        0
    ] and "ulm and jena together can isolate bonn" in said[1]
    assert "With the edges bonn-kiel, ulm-jena as well" in said[1]
    better = Federation.parse(
        TEXT.replace('"curious"', '"eavesdropper"').replace('"ring"', '"complete"')
    )
    q = decor.Adversary.colluding(2)
    assert (
        better.guarantee(q).epsilon
        < federation.guarantee(q).epsilon
        == federation.guarantee(decor.Adversary.everyone()).epsilon
    )
    assert (
        "Half the steps (100)" in said[-2]
        and "Half the budget" in said[-1]
        and len(hints(federation)) == 3
    )


def test_a_complete_graph_gets_no_hint_about_edges_and_a_small_ratio_none_about_absence():
    complete = Federation.parse(
        TEXT.replace('"ring"', '"complete"').replace("epsilon", "ratio = 100\nepsilon")
    )
    assert all("isolate" not in hint and "away" not in hint for hint in hints(complete, most=9))
    large = Federation.parse(TEXT.replace("epsilon", "ratio = 1e6\nepsilon"))
    said = next(hint for hint in hints(large, most=9) if "away" in hint)
    assert (
        "the independent noise of 250,000 steps" in said
        and "privacy.ratio = 200 makes that 50 steps" in said
    )
    assert steady_ratio(4, 200) == 200


@pytest.mark.parametrize(("steps", "rounds", "times"), [(20, 2, 0.77), (5, 2, 1.48), (20, 3, 2.27)])
def test_a_file_without_a_ratio_is_told_where_it_takes_one_that_no_fault_may_meet(
    steps, rounds, times
):
    given = f"steps = {steps}\ngossip_rounds = {rounds}"
    federation = Federation.parse(TEXT.replace("steps = 200", given))
    plan = federation.plan
    taken = (plan.sigma_cor / plan.sigma_cdp) ** 2
    assert taken / steady_ratio(4, steps) == pytest.approx(times, abs=0.01)
    said = [hint for hint in hints(federation) if "away" in hint]
    assert bool(said) == (times > 1)
    assert all(hint.startswith("The file has no privacy.ratio, and its noise") for hint in said)
    # somebody has chosen this one: that it is a little larger is no reason for a hint
    chosen = replace(federation, privacy=replace(federation.privacy, ratio=taken))
    said = [hint for hint in hints(chosen) if "away" in hint]
    assert bool(said) == (times > 2) and not any("no privacy.ratio" in hint for hint in said)


def test_a_local_plan_is_told_which_edges_would_free_it():
    fragile = Federation.parse(TEXT.replace('"ring"', '"star"'))
    said = hints(fragile)[0]
    assert "A user can be isolated by one user, so all noise is independent" in said
    assert "With the edges ulm-kiel, ulm-jena as well, the same budget takes sigma_cdp" in said
