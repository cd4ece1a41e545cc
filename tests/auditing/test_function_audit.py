"""Audits of code that is not ours: correct claims pass and are nearly reached, false ones fail."""

import json
import math
import textwrap

import numpy as np
import pytest

import decor
from decor.auditing.function_audit import neighbouring_datasets, prove_epsilon
from decor.auditing.mu_bound import ErrorCounts
from decor.errors import InputError
from decor.privacy.loss import gaussian

DELTA = 1e-5
ABSENT, PRESENT = np.zeros(20), np.eye(20)[3]


def noisy(mu, size=1.0):
    """A Gaussian mechanism with this mu on the data sets above, and no more for a claim of it."""

    def messages(data, seed):
        return size * data + np.random.default_rng(seed).normal(size=20) / mu

    return messages


def audit(messages, epsilon=3.0, calls=6000, **more):
    more = {"datasets": (PRESENT, ABSENT)} | more
    return decor.audit_function(messages, epsilon=epsilon, delta=DELTA, calls=calls, **more)


@pytest.mark.parametrize("epsilon", [1.0, 3.0, 8.0])
def test_a_true_claim_passes_and_most_of_its_mu_is_proven(epsilon):
    mu = gaussian.mu(epsilon, DELTA)
    result = audit(noisy(mu), epsilon, calls=50_000)
    assert result.passed and result.failure == ""
    # a smaller mu takes more calls for the same share
    assert 0.88 * min(1.0, epsilon / 3) < result.reached <= 1
    assert result.claimed_mu == mu and 0 < result.attack.epsilon < epsilon


def test_a_claim_of_two_thirds_of_the_truth_fails_and_says_by_how_much():
    result = audit(noisy(gaussian.mu(6.0, DELTA)), epsilon=3.0, calls=10_000)
    assert not result.passed and result.attack.epsilon <= 3.0, "only as a Gaussian it is false"
    assert 3.0 < result.gaussian_epsilon <= 6.0
    assert "if its noise is Gaussian, and 3 was claimed" in result.failure
    assert audit(noisy(gaussian.mu(6.0, DELTA)), 3.0, calls=10_000, gaussian_noise=False).passed, (
        "whatever the noise is, so few calls do not prove it"
    )


def test_without_noise_a_claim_fails_whatever_the_noise_is():
    result = audit(lambda data, seed: data, epsilon=1.0, gaussian_noise=False)
    assert not result.passed and "whatever its noise is" in result.failure
    assert result.attack.counts.misses == result.attack.counts.false_alarms == 0


def test_a_laplace_mechanism_keeps_its_epsilon_and_is_no_gaussian():
    """Its mu is larger than that of a Gaussian claim, so only the bound for any noise counts."""

    def messages(data, seed):
        return data + np.random.default_rng(seed).laplace(size=20)

    result = audit(messages, epsilon=1.0, calls=20_000, gaussian_noise=False)
    assert result.passed and result.attack.mu > result.claimed_mu
    assert "was not compared" in str(result)


def test_noise_that_cancels_between_coordinates_is_found():
    """Alone each coordinate tells little; one of them tells nothing but the other's noise."""

    def messages(data, seed):
        noise = np.random.default_rng(seed).normal(size=20) * 4
        noise[7] = noise[3]
        return data + noise

    result = audit(messages)
    assert not result.passed and result.attack.kind == "fitted"


def test_a_leak_spread_over_all_coordinates_is_found_without_weights_of_single_ones():
    def messages(data, seed):
        return data.sum() * np.full(400, 0.2) + np.random.default_rng(seed).normal(size=400)

    assert not audit(messages, epsilon=1.0).passed


def test_most_of_mu_is_proven_where_it_is_spread_over_the_steps_of_a_loop():
    """Thirty steps of three coordinates each; too few calls show which of them tell anything."""
    spread = np.zeros((30, 3))
    spread[:, 0] = 1 / math.sqrt(30)
    mu = gaussian.mu(3.0, DELTA)

    def messages(data, seed):
        return data + np.random.default_rng(seed).normal(size=(30, 3)) / mu

    result = audit(messages, calls=50_000, datasets=(spread, 0 * spread))
    assert result.passed and result.attack.kind == "matched"
    assert 0.85 < result.reached <= 1


def test_ones_own_score_is_an_attack():
    """The secret is in the product of two coordinates: no weights find it."""

    def messages(data, seed):
        one, other = np.random.default_rng(seed).normal(size=2)
        return np.array([one, math.copysign(other, one) if data[3] else -math.copysign(other, one)])

    assert audit(messages).passed
    result = audit(messages, score=lambda message: message[0] * message[1])
    assert not result.passed and result.attack.kind == "own score"


def test_what_is_not_random_enough_is_still_measured():
    assert audit(lambda data, seed: np.zeros(3)).attack.mu == 0
    # an adversary sees a NaN too
    assert not audit(lambda data, seed: data if data.any() else data + np.nan).passed


def test_error_rates_of_a_known_mechanism_prove_no_more_than_its_epsilon():
    """Randomised response at epsilon 2, at its expected counts and far from them."""
    truth = math.exp(2.0) / (1 + math.exp(2.0))
    wrong = round(10_000 * (1 - truth))
    proven = prove_epsilon(ErrorCounts(wrong, 10_000, wrong, 10_000), 0.0, 1e-3)
    assert 1.8 < proven < 2.0
    assert prove_epsilon(ErrorCounts(5000, 10_000, 5000, 10_000), DELTA, 1e-3) == 0


def test_default_data_sets_are_neighbours():
    for relation, second in (("replace", (8.0, 0.0)), ("add-remove", (0.0, 1.0))):
        (X, y), (other, labels) = neighbouring_datasets(relation)
        assert (X[1:] == other[1:]).all() and (y[1:] == labels[1:]).all()
        assert (X[0, 0], y[0]) == (8.0, 1.0) and (other[0, 0], labels[0]) == second
        assert not X[1:, 0].any(), "nobody else has the canary's feature"


def test_seeds_do_not_tell_the_data_set():
    seen = {True: [], False: []}

    def messages(data, seed):
        seen[bool(data.any())].append(seed)
        return [seed % 2**20]

    assert audit(messages, calls=20_000).passed
    assert len(set(seen[True] + seen[False])) > 19_000


BAD = [
    ({"epsilon": 0.0}, "epsilon must be a positive finite number"),
    ({"delta": 0.0}, "delta must be between 0 and 1"),
    ({"calls": 10}, "calls must be a whole number from 1000"),
    ({"confidence": 1.0}, "confidence must be"),
    ({"datasets": (1, 2, 3)}, "two neighbouring data sets, not 3"),
    ({"relation": "other", "datasets": None}, "relation must be"),
]


@pytest.mark.parametrize(("given", "words"), BAD, ids=[words for _, words in BAD])
def test_bad_input_is_refused_before_the_function_is_called(given, words):
    def messages(data, seed):
        raise AssertionError("called")

    options = {"epsilon": 1.0, "delta": DELTA, "datasets": (PRESENT, ABSENT)} | given
    with pytest.raises(InputError, match=words):
        decor.audit_function(messages, **options)


def test_a_function_that_fails_or_changes_its_shape_is_refused_in_a_sentence():
    with pytest.raises(InputError, match="the audited function failed: ZeroDivisionError"):
        audit(lambda data, seed: 1 / 0)
    with pytest.raises(InputError, match="arrays of the same sizes"):
        audit(lambda data, seed: np.zeros(1 + seed % 2))


def test_the_command_audits_a_module_and_says_why_it_fails(here, tmp_path, monkeypatch):
    (tmp_path / "own_loop_to_audit.py").write_text(
        textwrap.dedent("""
            import numpy as np

            def messages(data, seed, scale=8.0):
                X, y = data
                shift = X[0, 0] * (2 * y[0] - 1) / 8
                return [shift + scale * np.random.default_rng(seed).normal()]

            def faulty(data, seed):
                return messages(data, seed, scale=0.5)

            def pair():
                return (np.ones((2, 1)) * 8, np.ones(2)), (np.ones((2, 1)) * 8, np.zeros(2))
        """)
    )
    monkeypatch.syspath_prepend(tmp_path)
    line = ["audit", "--epsilon", 3, "--delta", DELTA, "--calls", 2000]
    answer = json.loads(here(*line, "--function", "own_loop_to_audit:messages", "--json").stdout)
    assert answer["passed"] and answer["calls"] == 2000 and answer["claimed_epsilon"] == 3
    faulty = "own_loop_to_audit:faulty"
    done = here(*line, "--function", faulty, "--datasets", "own_loop_to_audit:pair", check=1)
    assert done.stdout.startswith("FAIL: epsilon 3 at delta 1e-05 was claimed.")
    assert "Not proven" in done.stdout and "and 3 was claimed" in done.stderr
    for more, words in (
        (["--function", faulty, "--engine", "peers"], "drop it"),
        (["--function", "own_loop_to_audit:missing"], "no function 'missing'"),
        (["--calls", 5000], "--calls is for --function"),
    ):
        assert words in here("audit", "--epsilon", 3, *more, check=2).stderr
    assert "give --epsilon" in here("audit", "--function", faulty, check=2).stderr
