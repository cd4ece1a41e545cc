import math
from dataclasses import replace

import decor
from decor import Adversary, Exposure, NoisePlan
from decor.text import rounded_up


def plan(topology, adversary):
    return NoisePlan(topology, Exposure(1.0, 100), adversary, 8.0, 30.0)


def test_the_sentence_says_who_is_protected_from_whom():
    said = str(plan(decor.torus(4, 4), Adversary.curious()).guarantee(1e-5))
    assert (
        said.endswith("such as user 1 to user 0.")
        and "SecLDP over 100 steps" in said
        and "the data of one user replaced" in said
    )
    assert (
        "any one curious user who reads every message. All users are equally exposed, such as"
        in said
    )
    labelled = decor.from_edges(3, [(0, 1), (1, 2)], labels=["Bern", "Basel", "Genf"])
    assert "Most exposed: user Bern, to user Basel." in str(
        plan(labelled, Adversary.curious()).guarantee(1e-5)
    )


def test_a_guarantee_is_short_where_python_shows_it():
    guarantee = plan(decor.ring(16), Adversary.curious()).guarantee(1e-5)
    shown = f"epsilon {rounded_up(guarantee.epsilon)}, delta 1e-05, curious, unit user, replace"
    assert repr(guarantee) == f"Guarantee({shown}, 100 steps)"
    assert repr(replace(guarantee, exact=False)).endswith("100 steps, upper bound)")
    void = replace(guarantee, epsilon=math.inf, void="the rule has looked at private metrics")
    assert repr(void) == "Guarantee(none: the rule has looked at private metrics)"


def test_printed_figures_are_rounded_up():
    assert [
        rounded_up(v)
        for v in (3.0, 3.0000000000001, 3.0001, 2.9999999999, 12345.0, 0.0012341, 0.0, math.inf)
    ] == [
        "3",
        "3",
        "3.001",
        "3",
        "1.235e+04",
        "0.001235",
        "0",
        "inf",
    ]
