"""What a user's data has paid: composed over runs, and refused where it would be too much."""

import gzip
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from ledgers import open_ledger
from party import make_terms

import decor
from decor.cli.main import main
from decor.errors import InputError, LedgerError, PrivacyStop
from decor.federation.spending import (
    epsilon_of_plan,
    figure,
    figures,
    ledger_status,
    ledger_terms,
    name_of,
    open_run,
    own_figure,
    past_run,
)
from decor.learning.recipe import Recipe
from decor.net.identity import Identity
from decor.net.ledger import Ledger
from decor.net.ledger_reading import ENDED_EARLY, read_entries
from decor.privacy.composition import Question
from decor.privacy.loss import gaussian

OLD = Path(__file__).parents[1] / "version_0_1" / "bonn.ledger.gz"
TASK = decor.Task(
    decor.models.logistic(2), decor.losses.logistic, [([[0.0, 1.0]], [k % 2]) for k in range(3)]
)
EAVESDROPPER = Question("user", "replace", 0)


def terms(epsilon=10.0, steps=20, topology=None, adversary=0, delta=0.999e-5, **exposure):
    plan = decor.calibrate(
        topology or decor.ring(3),
        decor.Exposure(1.0, steps, **exposure),
        decor.Adversary(adversary),
        decor.Budget(epsilon, delta),
    )
    return make_terms(TASK, plan, Recipe(gossip_rounds=1), [Identity.new() for _ in range(3)])


def example_terms(epsilon=3.0, **more):
    return terms(epsilon, unit="example", batch_size=4, records=100, **more)


@pytest.fixture
def ledger(tmp_path):
    with open_ledger(tmp_path / "ledger") as made:
        yield made


def sent(ledger, run, steps):
    for step in range(steps):
        ledger.record(run, step, b"message")


def finish(ledger, terms, steps, allowance=1e6):
    run, _ = open_run(ledger, terms, 0, allowance)
    sent(ledger, run, steps)
    ledger.end(run, "finished")
    return run


def test_a_run_reserves_its_plan_and_its_messages_are_a_reading(ledger):
    one = terms()
    run, new = open_run(ledger, one, 0)
    (entry,) = ledger.entries()
    assert new and name_of(entry) == "party"
    assert own_figure(entry).so_far == 0 and 9.99 < own_figure(entry).promised <= 10
    sent(ledger, run, 5)
    (entry,) = ledger.entries()
    figures_now = own_figure(entry)
    assert figures_now.so_far == pytest.approx(one.guarantee_after(5).epsilon, rel=1e-9)
    assert figures_now.promised == epsilon_of_plan(entry) == one.promise.epsilon <= 10
    assert open_run(ledger, one, 0) == (run, False)
    # ended early, the messages are what counts
    ledger.end(run, "stopped")
    (entry,) = ledger.entries()
    assert own_figure(entry).promised == figures_now.so_far < epsilon_of_plan(entry)


def test_an_example_level_run_counts_whole_once_it_has_begun(ledger):
    one = example_terms()
    run, _ = open_run(ledger, one, 0)
    assert own_figure(ledger.entries()[0]).so_far == 0
    sent(ledger, run, 1)
    ledger.end(run, "stopped")
    own = own_figure(ledger.entries()[0])
    assert 2.9 < own.so_far == own.promised <= 3.0


def test_repeated_steps_are_paid_once_more(ledger):
    run = finish(ledger, terms(), 20)
    (entry,) = ledger.entries()
    again = replace(entry, repeated=20)
    mu = gaussian.mu(own_figure(entry).promised, 0.999 * 0.999e-5)
    double = float(gaussian.epsilon(math.sqrt(2) * mu, 0.999 * 0.999e-5))
    assert own_figure(again).promised == pytest.approx(double, rel=1e-5) and run


def test_a_finished_run_is_not_begun_again(ledger):
    one = terms()
    finish(ledger, one, 20)
    with pytest.raises(PrivacyStop, match="its budget is spent"):
        open_run(ledger, one, 0, 100.0)


def test_other_federations_count_also_for_a_run_that_goes_on(ledger):
    first, second = terms(), terms()
    late = finish(ledger, second, 20)
    early, _ = open_run(ledger, first, 0, 15.5)
    with pytest.raises(
        PrivacyStop, match=r"other runs in this ledger come to epsilon 10;.*--allow 15\.4"
    ):
        open_run(ledger, first, 0)
    with pytest.raises(PrivacyStop, match=r"it comes to 15\.4\d: above 15\.4 "):
        open_run(ledger, first, 0, 15.4)
    assert open_run(ledger, first, 0, 15.5) == (early, False) and early > late
    sent(ledger, early, 20)
    (total,) = figures(ledger.entries())
    # two Gaussians of one length, not the sum of their epsilons
    mu = gaussian.mu(10.0, 0.999e-5)
    assert total.so_far == pytest.approx(
        float(gaussian.epsilon(math.sqrt(2) * mu, 0.999e-5)), rel=1e-3
    )
    assert total.delta == 0.999e-5 and total.promised == total.so_far < 15.5


def test_what_a_refusal_says_is_enough(ledger):
    finish(ledger, terms(), 20)
    with pytest.raises(PrivacyStop) as refused:
        open_run(ledger, terms(3.0), 0)
    allowed = float(re.search(r"--allow ([\d.]+)", str(refused.value))[1])
    assert open_run(ledger, terms(3.0), 0, allowed)[1]


def test_an_unfinished_run_reserves_its_whole_plan(ledger):
    open_run(ledger, terms(), 0)
    with pytest.raises(PrivacyStop, match=r"with the whole plan of party \(run 1\), not ended;"):
        open_run(ledger, terms(), 0)


def test_runs_of_other_kinds_are_composed_for_the_question_of_the_new_one(ledger):
    finish(ledger, terms(2.0), 20)
    one = example_terms()
    with pytest.raises(PrivacyStop, match="one example, add-remove, against eavesdropper"):
        open_run(ledger, one, 0)
    run, _ = open_run(ledger, one, 0, 3.9)
    rows = figures(ledger.entries())
    assert [(row.question.unit, row.question.relation) for row in rows] == [
        ("user", "replace"),
        ("example", "add-remove"),
    ]
    # the data of a user is exposed far more by a run that protects examples
    assert rows[0].promised > 10 * rows[1].promised and 3 < rows[1].promised <= 3.9 and run


CURIOUS = {"adversary": 1}


@pytest.fixture
def limited(tmp_path):
    """A ledger with a limit of 3.5, in which a run of epsilon 3 against a curious user has ended."""
    Ledger.create(tmp_path / "limited", bytes(32), allow=3.5, allow_delta=1e-5)
    with Ledger(tmp_path / "limited") as made:
        finish(made, terms(3.0, **CURIOUS), 20, None)
        yield made


@pytest.mark.parametrize(
    ("later", "comes_to"),
    [
        # of all examples of a user together such a run hides nothing
        (lambda: example_terms(0.3, **CURIOUS), "∞"),
        # against an eavesdropper both together are within it
        (lambda: terms(1.4, adversary=0), r"3\.6\d+"),
    ],
    ids=["another unit", "a weaker adversary"],
)
def test_a_limit_is_kept_for_every_question_that_a_run_was_planned_for(limited, later, comes_to):
    new, before = later(), limited.entries()
    why = rf"comes to {comes_to}: above 3\.5 \(delta 1e-05, all data of one user, against curious"
    with pytest.raises(PrivacyStop, match=why + ".*kept for every question") as refused:
        # nor does an option lift what the ledger's owner has promised
        open_run(limited, new, 0, 1e6)
    # which would be no way out
    assert "--allow" not in str(refused.value) and "inf" not in str(refused.value)
    assert limited.entries() == before


def test_a_limit_is_kept_for_the_question_of_the_new_run_too(limited):
    # the run before hides less from everyone
    with pytest.raises(PrivacyStop, match=r"above 3\.5 \(.*all data of one user, against everyone"):
        open_run(limited, terms(1.0, adversary=None), 0)
    # what fits for both questions begins, and the status has the larger figure
    fits = terms(0.5, **CURIOUS)
    assert open_run(limited, fits, 0)[1]
    state = ledger_status(limited, fits)
    assert state["ledger_limit"] == 3.5 and 3.0 < state["ledger_epsilon"] <= 3.5


def test_a_run_that_was_ended_without_a_message_binds_nothing(limited):
    mistake = example_terms(3.0, adversary=None)
    run = limited.begin(mistake.digest, ledger_terms(mistake, 0))
    fits = terms(0.5, **CURIOUS)
    with pytest.raises(
        PrivacyStop, match=rf"epsilon ∞, with the .*\(run {run}\).*decor ledger end"
    ):
        open_run(limited, fits, 0)
    limited.end(run, ENDED_EARLY)
    assert open_run(limited, fits, 0)[1]
    # until a neighbour shows that a message had left
    limited.end_as_outdated(run, 0, "kiel holds a receipt")
    with pytest.raises(PrivacyStop, match="comes to ∞"):
        open_run(limited, fits, 0)


@pytest.mark.parametrize("repeated", [False, True])
def test_a_run_that_was_ended_early_never_goes_on(ledger, repeated):
    one = terms()
    run, _ = open_run(ledger, one, 0)
    sent(ledger, run, 0 if repeated else 1)
    ledger.end(run, ENDED_EARLY)
    why = "was ended by decor ledger end after 1 message, and never goes on"
    if repeated:
        ledger.end_as_outdated(run, 3, why := "kiel holds a receipt of step 3")
    with pytest.raises(PrivacyStop, match=why):
        open_run(ledger, one, 0, 1e6)


def test_a_smaller_delta_is_a_stricter_limit(ledger):
    with pytest.raises(PrivacyStop, match="delta 1e-08"):
        open_run(ledger, terms(), 0, 10.0, 1e-8)
    with pytest.raises(InputError, match="delta of a limit"):
        open_run(ledger, terms(), 0, 10.0, 1.5)
    assert open_run(ledger, terms(), 0, 20.0, 1e-8)[1]


def test_this_user_counts_and_not_the_worst_one(ledger):
    star = terms(topology=decor.star(3), adversary=0)
    values = []
    for number in (0, 1):
        held = json.loads(ledger_terms(star, number))
        assert held["number"] == number and held["distance"] == star.grid.distance > 0
        run = ledger.begin(bytes([number]) * 32, json.dumps(held))
        values.append(figure([ledger.entries()[-1]], EAVESDROPPER, 1e-5).promised)
        assert run
    del held["number"]
    ledger.begin(bytes(32), json.dumps(held))
    unknown = figure([ledger.entries()[-1]], EAVESDROPPER, 1e-5).promised
    assert values[0] < values[1] == unknown


def test_an_unknown_distance_counts_as_that_of_the_largest_model(ledger):
    one = terms()
    held = json.loads(ledger_terms(one, 0))
    del held["distance"]
    ledger.begin(bytes(32), json.dumps(held))
    most = past_run(ledger.entries()[0]).distance
    assert one.grid.distance < most < 1e-9
    for parameters in (1000, 10**6):
        assert replace(one, parameters=parameters).grid.distance < most


def test_the_limit_in_force_is_told_whoever_has_set_it(ledger, tmp_path):
    """The ledger's owner, an option of the node, or nobody: then it is the federation's budget."""

    def told(of, allowance=None):
        open_run(of, one, 0, allowance)
        found = ledger_status(of, one, allowance)
        return found["ledger_epsilon"], found["ledger_limit"]

    one = terms()
    assert told(ledger) == (pytest.approx(10.0, rel=1e-4), 10.0)
    assert told(ledger, 25.0) == (pytest.approx(10.0, rel=1e-4), 25.0)
    Ledger.create(tmp_path / "limited", bytes(32), allow=15.0, allow_delta=1e-5)
    with Ledger(tmp_path / "limited", bytes(32)) as limited:
        assert told(limited)[1] == told(limited, 25.0)[1] == 15.0
        assert told(limited, 12.0)[1] == 12.0
    # an earlier run counts, and lifts what has to be allowed
    finish(ledger, one, 20)
    one = terms()
    assert told(ledger, 15.5) == (pytest.approx(15.4, rel=1e-2), 15.5)


def test_no_delta_of_another_federation_lifts_a_limit_without_one(tmp_path):
    """Whoever writes the next file chooses its delta, and at a large one every epsilon is small."""
    Ledger.create(tmp_path / "limited", bytes(32), allow=3.5)
    with Ledger(tmp_path / "limited") as limited:
        finish(limited, terms(3.0), 20, None)
        new, before = terms(1.4, delta=1e-3), limited.entries()
        with pytest.raises(PrivacyStop, match=r"comes to 3\.\d+: above 3\.5 \(delta 9\.99e-06, "):
            open_run(limited, new, 0, 1e6, 1e-3)
        assert limited.entries() == before


@pytest.mark.parametrize("allowance", [math.nan, math.inf, -1.0, 0.0])
def test_an_allowance_that_is_no_number_lifts_nothing(ledger, allowance):
    with pytest.raises(InputError, match="--allow must be a number above 0"):
        open_run(ledger, terms(), 0, allowance)


@pytest.mark.parametrize("broken", [{}, {"number": 3}, {"number": "0"}, {"distance": -1.0}])
def test_terms_that_cannot_be_read_are_no_free_run(ledger, broken):
    held = json.loads(ledger_terms(terms(), 0)) | broken if broken else {}
    ledger.begin(bytes(32), json.dumps(held))
    with pytest.raises(LedgerError, match="terms that cannot be read"):
        own_figure(ledger.entries()[0])


def test_a_ledger_of_version_0_1_is_read_as_the_worst_user(tmp_path, capsys):
    path = tmp_path / "bonn.ledger"
    path.write_bytes(gzip.decompress(OLD.read_bytes()))
    (entry,) = read_entries(path)
    run = past_run(entry)
    assert run.number is None and run.distance > 0
    plain = run.plan.guarantee_on_grid(0.0, own_figure(entry).delta, steps=entry.steps)
    assert own_figure(entry).so_far >= plain.epsilon * (1 - 1e-9)
    for command in (["ledger", str(path)], ["ledger", "show", str(path), "--delta", "1e-6"]):
        assert main(command) == 0
        assert "All runs together" in capsys.readouterr().out


@pytest.mark.parametrize("steps", range(1, 9))
def test_no_printed_epsilon_is_below_what_was_spent(tmp_path, capsys, steps):
    path = tmp_path / "bonn.ledger"
    one = terms()
    with open_ledger(path) as ledger:
        run, _ = open_run(ledger, one, 0)
        sent(ledger, run, steps)
        ledger.end(run, "finished")
        with pytest.raises(PrivacyStop) as refused:
            open_run(ledger, one, 0)
    truth, promised = one.guarantee_after(steps).epsilon, one.promise.epsilon
    found = [float(text) for text in re.findall(r"epsilon ([\d.e-]*\d)", str(refused.value))]
    assert main(["ledger", str(path)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    (own,) = [row for row in rows if row[:2] == ["1", "party"]]
    (total,) = [row for row in rows if row[:1] == ["user"]]
    found += [float(own[4]), float(total[3]), float(total[4])]
    assert main(["status", str(path)]) == 0
    told = re.findall(r"epsilon ([\d.e-]*\d)", capsys.readouterr().out)
    whole, last = map(float, told)  # what status says first is the whole plan's promise
    assert promised <= whole * (1 + 1e-8) and whole < 1.001 * promised
    assert len(found) == 4
    assert all(truth <= each * (1 + 1e-8) and each < 1.001 * truth for each in [*found, last])
