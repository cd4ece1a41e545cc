"""What a user's data has paid: added up over runs, and refused where it would be too much."""

import math
import re

import pytest
from ledgers import open_ledger
from party import make_terms

import decor
from decor.cli.main import main
from decor.errors import InputError, LedgerError
from decor.federation.spending import cost, name_of, open_run, total_cost
from decor.learning.recipe import Recipe
from decor.net.identity import Identity
from decor.net.ledger import Ledger

TASK = decor.Task(decor.models.logistic(2), decor.losses.logistic, [([[0.0, 1.0]], [1])] * 3)


def terms(epsilon=10.0, steps=20):
    plan = decor.calibrate(
        decor.ring(3),
        decor.Exposure(1.0, steps),
        decor.Adversary.eavesdropper(),
        decor.Budget(epsilon, 0.999e-5),
    )
    return make_terms(TASK, plan, Recipe(), [Identity.new() for _ in range(3)])


@pytest.fixture
def ledger(tmp_path):
    with open_ledger(tmp_path / "ledger") as made:
        yield made


def sent(ledger, run, steps):
    for step in range(steps):
        ledger.record(run, step, b"message")


def test_a_run_costs_what_its_messages_cost_and_no_more(ledger):
    one = terms()
    run, new = open_run(ledger, one, None)
    assert (
        new and cost(ledger.entries()[0]).epsilon == 0 and name_of(ledger.entries()[0]) == "party"
    )
    sent(ledger, run, 5)
    after = cost(ledger.entries()[0])
    assert after.epsilon == one.guarantee_after(5).epsilon < one.guarantee_after(20).epsilon <= 10.0
    assert open_run(ledger, one, None) == (run, False)


def test_a_finished_run_is_not_begun_again(ledger):
    one = terms()
    run, _ = open_run(ledger, one, None)
    sent(ledger, run, 20)
    ledger.end(run, "finished")
    with pytest.raises(InputError, match="its budget is spent"):
        open_run(ledger, one, 100.0)


def test_other_federations_count_also_for_a_run_that_goes_on(ledger):
    first, second = terms(), terms()
    early, _ = open_run(ledger, first, None)  # begun, nothing sent
    late, _ = open_run(ledger, second, None)
    sent(ledger, late, 20)
    ledger.end(late, "finished")
    with pytest.raises(InputError, match=r"has spent epsilon 10 in other runs.*--allow 20"):
        open_run(ledger, first, None)
    with pytest.raises(InputError, match="together above 19.9"):
        open_run(ledger, first, 19.9)
    assert open_run(ledger, first, 20.0) == (early, False)
    sent(ledger, early, 20)
    epsilon, delta = total_cost(ledger.entries())
    assert 19.9 < epsilon <= 20 and delta == pytest.approx(2 * 0.999e-5)


@pytest.mark.parametrize("allowance", [math.nan, math.inf, -1.0, 0.0])
def test_an_allowance_that_is_no_number_lifts_nothing(ledger, allowance):
    with pytest.raises(InputError, match="--allow must be a number above 0"):
        open_run(ledger, terms(), allowance)


def test_terms_that_cannot_be_read_are_no_free_run(ledger):
    ledger.begin(bytes(32), "{}")
    with pytest.raises(LedgerError, match="terms that cannot be read"):
        cost(ledger.entries()[0])


@pytest.mark.parametrize("steps", range(1, 9))
def test_no_printed_epsilon_is_below_what_was_spent(tmp_path, capsys, steps):
    path = tmp_path / "bonn.ledger"
    one = terms()
    with Ledger(path) as ledger:
        run, _ = open_run(ledger, one, None)
        sent(ledger, run, steps)
        ledger.end(run, "finished")
        with pytest.raises(InputError) as refused:
            open_run(ledger, one, None)
    truth, promised = one.guarantee_after(steps).epsilon, one.promise.epsilon
    told = [str(refused.value)]
    for command in ("ledger", "status"):
        assert main([command, str(path)]) == 0
        told.append(capsys.readouterr().out)
    found = [float(text) for said in told for text in re.findall(r"epsilon ([\d.e-]*\d)", said)]
    assert len(found) == 4, told
    whole = found.pop(2)  # what status says first is the whole plan's promise
    assert promised <= whole * (1 + 1e-8) and whole < 1.001 * promised
    assert all(truth <= each * (1 + 1e-8) and each < 1.001 * truth for each in found), (truth, told)
