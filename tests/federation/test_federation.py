"""Federations: what is derived from the file, and digests that show where two files differ."""

import hashlib
import math
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace

import pytest
from federation_files import BASES, CHANGES, COMMON, ELSEWHERE, EXAMPLE, KEYS, TEXT, TOWNS, UNEVEN

import decor
from decor.errors import InputError
from decor.federation.federation import Federation, Member, Model, Network, Privacy, Training
from decor.training.release_grid import grid_of


def test_a_file_says_what_its_federation_is():
    federation = Federation.parse(TEXT)
    assert federation.name == "heart" and [m.name for m in federation.members] == list(TOWNS)
    assert (
        federation.budget == decor.Budget(3.0, 1e-5)
        and federation.adversary == decor.Adversary.curious()
    )
    assert federation.exposure == decor.Exposure(1.0, 200)
    assert (
        federation.topology.labels == TOWNS
        and federation.topology.edges.tolist() == decor.ring(4).edges.tolist()
    )
    assert federation.members[1] == Member("ulm", "ulm.example.org:7400", bytes([2]) * 32)
    assert federation.members[1].key == KEYS[1] and federation.number_of(bytes([3]) * 32) == 2
    assert (federation.learning_rate, federation.dtype) == (0.5, "float32")
    assert (federation.network.timeout, federation.network.quorum) == (30.0, 0.5)
    assert federation.parameters == 31 and federation.model_bytes == 124
    with pytest.raises(InputError, match="belongs to no user of 'heart'"):
        federation.number_of(bytes(32))
    with pytest.raises(FrozenInstanceError):
        federation.name = "lung"


def test_a_program_makes_the_same_federation_from_its_parts():
    made = Federation(
        name="heart",
        privacy=Privacy(epsilon=3, delta=1e-5, adversary="colluding:1"),
        training=Training(steps=200, clip=1, learning_rate=0.5),
        model=Model(kind="logistic", features=30),
        network=Network(topology="ring"),
        members=[
            Member(name, f"{name}.example.org:7400", bytes([k + 1]) * 32)
            for k, name in enumerate(TOWNS)
        ],
    )
    assert made == Federation.parse(TEXT) and made.digest == Federation.parse(TEXT).digest


def test_the_noise_is_derived_from_the_budget_less_a_thousandth_of_delta():
    federation = Federation.parse(TEXT)
    budget = decor.Budget(3.0, 1e-5)
    setting = federation.topology, federation.exposure, federation.adversary, budget
    wanted = decor.calibrate(*setting, gossip_rounds=1)  # the default of a file
    plan = federation.plan
    for derived, exact in ((plan.sigma_cdp, wanted.sigma_cdp), (plan.sigma_cor, wanted.sigma_cor)):
        assert exact <= derived <= exact * (1 + 1e-5) and float(f"{derived:.6g}") == derived
    assert plan.budget == budget == federation.budget
    guarantee = federation.guarantee()
    assert 2.99 < guarantee.epsilon <= 3.0 and guarantee.delta == 1e-5 and "bonn" in str(guarantee)
    assert plan.guarantee(1e-5).epsilon < guarantee.epsilon, "delta is kept back"
    assert federation.guarantee(decor.Adversary.everyone()).epsilon > 3.0


BEFORE = [
    (TEXT, 23.8403, 93.5487, "422a68832327bf8249ef24b2108dad468ea1c9b09962baa216bcb919859791bd"),
    (
        EXAMPLE,
        0.104213,
        0.408929,
        "0793d8189bd6c4f354b20d12b87ccf6befad91574f98e807161695b880b034fa",
    ),
    (
        UNEVEN,
        0.300076,
        0.939065,
        "99a04aa8deea99e27d87c6971a0a7dac51f04af4ee35893a438ed948503ae8a0",
    ),
]


@pytest.mark.parametrize(
    ("text", "cdp", "cor", "digest"), BEFORE, ids=["user", "example", "uneven shards"]
)
def test_files_of_before_derive_the_noise_and_the_digest_that_they_derived(text, cdp, cor, digest):
    """What commit c1e7804 derived: users that upgrade one after the other can still connect."""
    federation = Federation.parse(text)
    assert (federation.plan.sigma_cdp, federation.plan.sigma_cor) == (cdp, cor)
    assert federation.digest.hex() == digest
    spelt_out = Federation.parse(text.replace("[privacy]", "[privacy]\nany_delta = false"))
    assert spelt_out.digest.hex() == digest and "any_delta" not in spelt_out.to_toml()


def test_records_of_a_file_belong_to_the_users_who_have_them():
    federation = Federation.parse(UNEVEN)
    assert federation.exposure.records == {"bonn": 121, "ulm": 57, "kiel": 300, "jena": 41}
    blocks = UNEVEN.split("[[users]]")
    turned = Federation.parse("[[users]]".join([blocks[0], *blocks[:0:-1]]))
    assert turned.exposure.records_of(turned.topology) == (41, 300, 57, 121)
    assert turned.guarantee().topology.name(turned.guarantee().worst_user) == "jena"


def test_a_delta_too_large_for_its_users_is_refused_when_the_file_is_read():
    for text, delta, said in (
        (TEXT, "0.1", "for 4 users: at most 0.001"),
        (UNEVEN, "0.002", "for 519 .*: at most 0.001"),
    ):
        large = text.replace("delta = 1e-5", f"delta = {delta}")
        with pytest.raises(
            InputError,
            match=f"privacy.delta: delta {delta} is too large {said}.*any_delta = true in",
        ):
            Federation.parse(large)
        allowed = Federation.parse(large.replace("[privacy]", "[privacy]\nany_delta = true"))
        assert allowed.guarantee().epsilon <= 3.0 and Federation.parse(allowed.to_toml()) == allowed
        assert "privacy.any_delta" in dict(allowed.digests)
    with pytest.raises(
        InputError, match='privacy.any_delta must be true or false, not "yes"|not .yes.'
    ):
        Federation.parse(TEXT.replace("[privacy]", '[privacy]\nany_delta = "yes"'))


def test_gossip_and_ratio_choose_the_couple_as_calibrate_does():
    training = "steps = 200\ngossip_rounds = 3\naccelerate = 'designed'"
    designed = Federation.parse(
        TEXT.replace("steps = 200", training).replace('"ring"', '"complete"')
    )
    args = designed.topology, designed.exposure, designed.adversary, decor.Budget(3.0, 1e-5)
    assert designed.plan.sigma_cor == pytest.approx(
        decor.calibrate(*args, gossip_rounds=3, accelerate="designed").sigma_cor, rel=1e-5
    )
    fixed = Federation.parse(TEXT.replace("delta", "ratio = 100\ndelta"))
    assert fixed.plan.sigma_cor == pytest.approx(10 * fixed.plan.sigma_cdp, rel=1e-5)
    assert fixed.guarantee().epsilon <= 3.0


def test_a_graph_on_which_somebody_can_be_isolated_is_local_dp_and_says_so():
    fragile = Federation.parse(TEXT.replace('"curious"', '"colluding:2"'))
    assert fragile.plan.sigma_cor == 0 and "can isolate user bonn" in fragile.notes[0]
    assert Federation.parse(TEXT).notes == ()


def test_example_level_counts_everybodys_records():
    federation = Federation.parse(EXAMPLE)
    exposure = federation.exposure
    assert (exposure.unit, exposure.batch_size, exposure.records) == (
        "example",
        20,
        dict.fromkeys(TOWNS, 120),
    )
    assert (exposure.sampling, exposure.relation) == ("poisson", "add-remove")
    assert federation.recipe.batch_size is None and federation.guarantee().epsilon <= 3.0


def test_the_recipe_is_the_files():
    more = (
        'steps = 200\nschedule = "cosine"\nfinal = 0.1\nmomentum = 0.5\nbatch_size = '
        "8\ngossip_rounds = 2\n"
    )
    more += 'accelerate = "chebyshev"\nfinal_gossip_rounds = 5'
    recipe = Federation.parse(TEXT.replace("steps = 200", more)).recipe
    assert (
        recipe.schedule == decor.schedule.Cosine(0.1)
        and recipe.momentum == 0.5
        and recipe.batch_size == 8
    )
    assert (recipe.gossip.rounds, recipe.gossip.accelerate) == (2, True)
    assert (recipe.final_gossip.rounds, recipe.final_gossip.accelerate) == (5, True)
    inverse = Federation.parse(
        TEXT.replace("steps = 200", 'steps = 200\nschedule = "inverse-time"\nhorizon = 50')
    )
    assert inverse.recipe.schedule == decor.schedule.InverseTime(50.0)
    assert Federation.parse(TEXT).recipe.schedule == decor.schedule.Constant()


def _differ(one, two):
    ours, theirs = dict(one.digests), dict(two.digests)
    assert set(ours) == set(theirs)
    return {name for name in ours if ours[name] != theirs[name]}


@pytest.mark.parametrize("name", sorted(CHANGES | ELSEWHERE))
def test_every_field_changed_in_one_place_changes_its_own_digest_and_the_federations(name):
    """And none other, but for the noise that is derived from it."""
    base, change = ELSEWHERE.get(name, (None, CHANGES.get(name)))
    before = Federation.parse(BASES[base] if base else TEXT)
    if name == "privacy.unit":  # its companions go with it
        after = Federation.parse(TEXT)
        assert {name} < _differ(before, after)
        return
    after = change(before)
    companions = {"training.schedule": {"training.final"}}.get(name, set())
    assert _differ(before, after) - {"derived.noise"} == {name} | companions
    assert before.digest != after.digest
    unmoved = {
        "training.learning_rate",
        "network.timeout",
        "users.name",
        "model.features",
        "training.dtype",
    }
    assert name not in unmoved or "derived.noise" not in _differ(before, after)


def test_every_field_of_the_file_is_in_that_test():
    # left out of files that have no hash: those keep the digest that they had
    names = ("common", "hashed", "started", "columns", "lossy", "cnn")
    texts = (TEXT, *(BASES[name] for name in names))
    every = {name for text in texts for name in Federation.parse(text).fields()}
    assert every == {"format"} | set(CHANGES) | set(ELSEWHERE)


def test_digests_fit_in_a_hello():
    digests = Federation.parse(EXAMPLE).digests
    assert len(digests) <= 64 and all(len(digest) == 8 for _, digest in digests)
    names = [name for name, _ in digests]
    assert (
        names == sorted(names)
        and all(name.isascii() and len(name) <= 64 for name in names)
        and "derived.noise" in names
    )
    assert len(Federation.parse(TEXT).digest) == 32


def test_digests_are_the_same_in_every_process_and_version():
    """Written down once: a change here makes old and new installations refuse each other."""
    held = dict(Federation.parse(TEXT).digests)
    assert held["privacy.delta"] == hashlib.sha256(b"1e-05").digest()[:8]
    assert held["users.name"] == hashlib.sha256(b'["bonn","ulm","kiel","jena"]').digest()[:8]
    assert held["users.records"] == hashlib.sha256(b"[null,null,null,null]").digest()[:8]
    code = (
        "from decor.federation.federation import Federation; "
        f"print(Federation.parse({TEXT!r}).digest.hex())"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert found == Federation.parse(TEXT).digest.hex()


def test_other_noise_at_another_machine_is_another_federation():
    one, two = Federation.parse(TEXT), Federation.parse(TEXT)
    more = replace(two.plan, sigma_cor=two.plan.sigma_cor * 1.00001)
    vars(two)["_derived"] = (more, ())
    assert _differ(one, two) == {"derived.noise"} and one.digest != two.digest


def test_a_plan_that_misses_the_budget_is_refused(monkeypatch):
    import decor.federation.federation as room

    honest = room.calibrate
    monkeypatch.setattr(
        room, "calibrate", lambda *a, **k: replace(honest(*a, **k).scaled(0.9), budget=a[3])
    )
    with pytest.raises(
        InputError,
        match=r"privacy.epsilon 3 cannot be met: the derived noise "
        r"gives 3\.\d",
    ):
        _ = Federation.parse(TEXT).plan


def test_a_file_is_checked_without_torch():
    code = (
        "import sys; from decor.federation.federation import Federation; "
        f"Federation.parse({TEXT!r}).digest; "
    )
    code += "sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def spending(**privacy):
    federation = Federation.parse(TEXT)
    return replace(federation, privacy=replace(federation.privacy, **privacy))


def test_an_epsilon_that_the_tables_of_the_noise_cannot_carry_is_refused_when_the_file_is_checked():
    modest, bold = (spending(epsilon=epsilon) for epsilon in (20.0, 70.0))
    assert modest.guarantee().epsilon <= 20
    with pytest.raises(InputError, match=r"epsilon can be at most [0-9.]+, not 70"):
        bold.guarantee()


@pytest.mark.parametrize(
    ("epsilon", "parameters"), [(29.0, 10**6), (24.5, 10**7), (30.0, 611), (20.0, 139_267)]
)
def test_a_plan_of_calibrate_can_be_drawn_from_tables(epsilon, parameters):
    """16 users on a ring, 1,000 steps: these were refused, since nothing of delta was left for the
    tables.
    """
    exposure, curious = decor.Exposure(clip=1.0, steps=1000), decor.Adversary.curious()
    plan = decor.calibrate(decor.ring(16), exposure, curious, decor.Budget(epsilon, 1e-5))
    grid = grid_of(plan, parameters)
    assert plan.guarantee(1e-5 - grid.slack(epsilon)).epsilon <= epsilon, (
        "all of it together is within delta"
    )


def test_a_plan_of_before_that_left_nothing_for_the_tables_says_its_epsilon_with_them():
    """Version 0.1 calibrated for all of delta: with a thousandth for the tables such a plan is a
    little above its budget.
    """
    exposure, curious = decor.Exposure(clip=1.0, steps=1000), decor.Adversary.curious()
    more = decor.calibrate(decor.ring(16), exposure, curious, decor.Budget(29.0, 1e-5 / 0.999))
    before = replace(more, budget=decor.Budget(29.0, 1e-5))
    promise = before.guarantee_on_grid(grid_of(before, 10**6).distance)
    assert 29.0 < promise.epsilon < 29.01 and promise.delta == 1e-5


def test_against_an_adversary_for_whom_the_tables_are_too_coarse_nothing_is_promised():
    """Alone against everybody a user's epsilon is far larger, and what tables take of delta grows
    with its exponential.
    """
    federation = spending(epsilon=30.0, adversary="eavesdropper", ratio=400.0)
    assert federation.guarantee().epsilon <= 30
    everyone = federation.plan.guarantee(adversary=decor.Adversary.everyone()).epsilon
    assert everyone > 70 and federation.grid.slack(everyone) > 1e-3 * federation.budget.delta
    assert federation.guarantee(decor.Adversary.everyone()).epsilon == math.inf


def test_with_a_common_rate_a_file_has_nobodys_number_of_examples():
    federation = Federation.parse(COMMON)
    assert federation.exposure == decor.Exposure(1.0, 200, unit="example", batch_size=20, rate=0.05)
    assert 0.999 * 3 <= federation.guarantee().epsilon <= 3.0
    assert len(set(federation.guarantee().per_user.tolist())) == 1
    assert "records" not in federation.to_toml()
    assert Federation.parse(federation.to_toml()).digest == federation.digest
    # users with 5 and with 2,000 records may join
    for count in (5, 2000):
        task = federation.task(([[0.0] * 30] * count, [0] * count), None, user=0)
        assert task.counts == (count,)
    assert "privacy.rate" not in Federation.parse(EXAMPLE).fields(), "older digests stay"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("rate = 0.05", "rate = 1.5", "privacy.rate"),
        ('unit = "example"', 'unit = "user"', "privacy.rate 0.05 applies only"),
        ("rate = 0.05", 'rate = 0.05\nsampling = "fixed"', "draws every example independently"),
        ("batch_size = 20\n", "", "training.batch_size is missing"),
        ('name = "ulm"', 'name = "ulm"\nrecords = 120', "stays private with privacy.rate"),
    ],
)
def test_a_common_rate_that_does_not_fit_a_file_is_refused(old, new, said):
    with pytest.raises(InputError, match=said):
        Federation.parse(COMMON.replace(old, new))
