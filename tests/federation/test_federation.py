"""The federation's file: what it says, what it refuses, and what two who differ can tell each
other.
"""

import hashlib
import math
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import decor
from decor.errors import InputError
from decor.federation.federation import Federation, Member, Model, Network, Privacy, Training
from decor.federation.hints import hints, joined, steady_ratio
from decor.net.identity import line_of
from decor.training.release_grid import grid_of

KEYS = [line_of(bytes([k]) * 32) for k in range(1, 10)]
HEAD = """format = "decor-federation-1"
name = "heart"
"""
PRIVACY = """
[privacy]
epsilon = 3.0
delta = 1e-5
adversary = "curious"
"""
TRAINING = """
[training]
steps = 200
clip = 1.0
learning_rate = 0.5
"""
MODEL = """
[model]
kind = "logistic"
features = 30
"""
NETWORK = """
[network]
topology = "ring"
"""
TOWNS = ("bonn", "ulm", "kiel", "jena")


def users(names=TOWNS, records=None, addressless=()):
    text = ""
    for k, name in enumerate(names):
        address = "" if name in addressless else f"{name}.example.org:7400"
        text += f'\n[[users]]\nname = "{name}"\naddress = "{address}"\nkey = "{KEYS[k]}"\n'
        text += f"records = {records}\n" if records else ""
    return text


TEXT = HEAD + PRIVACY + TRAINING + MODEL + NETWORK + users()
EXAMPLE = TEXT.replace('"curious"', '"curious"\nunit = "example"').replace(
    "steps = 200", "steps = 200\nbatch_size = 20"
)
EXAMPLE = EXAMPLE.replace(users(), users(records=120))


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
    assert (federation.learning_rate, federation.dtype, federation.timeout, federation.quorum) == (
        0.5,
        "float32",
        30.0,
        0.5,
    )
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
    wanted = decor.calibrate(federation.topology, federation.exposure, federation.adversary, budget)
    plan = federation.plan
    for derived, exact in ((plan.sigma_cdp, wanted.sigma_cdp), (plan.sigma_cor, wanted.sigma_cor)):
        assert exact <= derived <= exact * (1 + 1e-5) and float(f"{derived:.6g}") == derived
    assert plan.budget == budget == federation.budget
    guarantee = federation.guarantee()
    assert 2.99 < guarantee.epsilon <= 3.0 and guarantee.delta == 1e-5 and "bonn" in str(guarantee)
    assert plan.guarantee(1e-5).epsilon < guarantee.epsilon, "delta is kept back"
    assert federation.guarantee(decor.Adversary.everyone()).epsilon > 3.0


UNEVEN = EXAMPLE
for _count in (121, 57, 300, 41):
    UNEVEN = UNEVEN.replace("records = 120", f"records = {_count}", 1)

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
    """What commit c1e7804 derived: parties who upgrade one after the other can still meet."""
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
        (UNEVEN, "0.002", "for 519 records: at most 0.001"),
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


DEFAULTS = [
    ("delta = 1e-5", 'delta = 1e-5\nunit = "user"\nrelation = "replace"'),
    ("epsilon = 3.0", "epsilon = 3"),
    ('"curious"', '"colluding:1"'),
    (
        "learning_rate = 0.5",
        'learning_rate = 0.5\nschedule = "constant"\nmomentum = -0.0\nweight_decay = '
        "0\ngossip_rounds = 1\n"
        'accelerate = "no"\nfinal_gossip_rounds = 0\ndtype = "float32"',
    ),
    ("features = 30", "features = 30\nclasses = 2"),
    ('topology = "ring"', 'topology = "ring"\ntimeout = 30\nquorum = 0.5\npatience = 300.0'),
]


@pytest.mark.parametrize(("short", "long"), DEFAULTS, ids=lambda text: text[:20])
def test_a_file_that_spells_out_a_default_is_the_same_federation(short, long):
    assert TEXT.count(short) == 1
    assert Federation.parse(TEXT.replace(short, long)).digests == Federation.parse(TEXT).digests


def test_edges_may_come_in_any_order_and_direction():
    edges = 'edges = [["bonn", "ulm"], ["ulm", "kiel"], ["kiel", "jena"], ["jena", "bonn"]]'
    other = 'edges = [["jena", "kiel"], ["bonn", "jena"], ["kiel", "ulm"], ["ulm", "bonn"]]'
    one, two = (
        Federation.parse(TEXT.replace('topology = "ring"', text)) for text in (edges, other)
    )
    assert one == two and one.digest == two.digest
    assert (
        one.plan.sigma_cor == Federation.parse(TEXT).plan.sigma_cor
        and one.digest != Federation.parse(TEXT).digest
    )


GRAPHS = [
    ("path", 4),
    ("star", 4),
    ("complete", 4),
    ("hypercube", 4),
    ("grid", 4),
    ("torus", 4),
    ("torus", 9),
    ("path", 2),
]


@pytest.mark.parametrize(("name", "count"), GRAPHS)
def test_every_family_is_found_by_its_name(name, count):
    text = TEXT.replace('"ring"', f'"{name}"').replace(
        users(), users([f"u{k}" for k in range(count)])
    )
    federation = Federation.parse(text.replace('"curious"', '"eavesdropper"'))
    side = {4: 2, 9: 3, 2: 1}[count]
    sizes = {
        "torus": (side, side),
        "grid": (side, side),
        "hypercube": (count.bit_length() - 1,),
    }.get(name, (count,))
    assert federation.topology.edges.tolist() == getattr(decor, name)(*sizes).edges.tolist()
    assert Federation.parse(federation.to_toml()) == federation


CHANGES = {
    "name": lambda f: replace(f, name="lung"),
    "privacy.epsilon": lambda f: _with(f, "privacy", epsilon=3.5),
    "privacy.delta": lambda f: _with(f, "privacy", delta=1e-6),
    "privacy.adversary": lambda f: _with(f, "privacy", adversary="eavesdropper"),
    "privacy.ratio": lambda f: _with(f, "privacy", ratio=50),
    "training.steps": lambda f: _with(f, "training", steps=201),
    "training.clip": lambda f: _with(f, "training", clip=1.5),
    "training.learning_rate": lambda f: _with(f, "training", learning_rate=0.6),
    "training.momentum": lambda f: _with(f, "training", momentum=0.9),
    "training.weight_decay": lambda f: _with(f, "training", weight_decay=0.1),
    "training.gossip_rounds": lambda f: _with(f, "training", gossip_rounds=2),
    "training.final_gossip_rounds": lambda f: _with(f, "training", final_gossip_rounds=2),
    "training.batch_size": lambda f: _with(f, "training", batch_size=32),
    "training.dtype": lambda f: _with(f, "training", dtype="float64"),
    "model.features": lambda f: _with(f, "model", features=31),
    "network.timeout": lambda f: _with(f, "network", timeout=31),
    "network.quorum": lambda f: _with(f, "network", quorum=0.75),
    "network.patience": lambda f: _with(f, "network", patience=1),
    "network.topology": lambda f: _with(f, "network", topology="complete"),
    "users.name": lambda f: _member(f, 0, name="hof"),
    "users.address": lambda f: _member(f, 0, address="hof.example.org:7400"),
    "users.key": lambda f: _member(f, 0, public=bytes([9]) * 32),
}
ELSEWHERE = {  # which base, and the change
    "training.schedule": (
        "cosine",
        lambda f: replace(f, training=replace(f.training, schedule="constant", final=None)),
    ),
    "training.final": ("cosine", lambda f: _with(f, "training", final=0.5)),
    "training.horizon": ("inverse", lambda f: _with(f, "training", horizon=51)),
    "training.accelerate": ("rounds", lambda f: _with(f, "training", accelerate="designed")),
    "privacy.unit": ("example", lambda f: f),
    "privacy.sampling": ("replaced", lambda f: _with(f, "privacy", sampling="fixed")),
    "privacy.relation": ("example", lambda f: _with(f, "privacy", relation="replace")),
    "users.records": ("example", lambda f: _member(f, 0, records=121)),
    "model.kind": ("classes", lambda f: _with(f, "model", kind="multinomial")),
    "model.classes": ("multinomial", lambda f: _with(f, "model", classes=5)),
    "model.hidden": ("mlp", lambda f: _with(f, "model", hidden=[16])),
    "model.activation": ("mlp", lambda f: _with(f, "model", activation="tanh")),
    "model.seed": ("mlp", lambda f: _with(f, "model", seed=7)),
    "model.code": ("code", lambda f: _with(f, "model", code="own:other")),
    "network.rows": ("grid", lambda f: _with(f, "network", rows=1)),
    "network.edges": ("edges", lambda f: _with(f, "network", edges=f.network.edges[:-1])),
}
MLP = 'kind = "mlp"\nclasses = 4\nhidden = [8]'
BASES = {
    "cosine": TEXT.replace("steps = 200", 'steps = 200\nschedule = "cosine"'),
    "inverse": TEXT.replace("steps = 200", 'steps = 200\nschedule = "inverse-time"\nhorizon = 50'),
    "rounds": TEXT.replace("steps = 200", "steps = 200\ngossip_rounds = 3"),
    "example": EXAMPLE,
    "replaced": EXAMPLE.replace("epsilon", 'relation = "replace"\nepsilon'),
    "classes": TEXT,
    "multinomial": TEXT.replace('"logistic"', '"multinomial"\nclasses = 4'),
    "mlp": TEXT.replace('kind = "logistic"', MLP),
    "code": TEXT.replace('kind = "logistic"', 'code = "own:model"').replace("features = 30\n", ""),
    "grid": TEXT.replace('"ring"', '"grid"'),
    "edges": TEXT.replace(
        'topology = "ring"',
        'edges = [["bonn", "ulm"], ["ulm", "kiel"], ["kiel", "jena"], ["bonn", "jena"]]',
    ),
}


def _with(federation, section, **changed):
    return replace(federation, **{section: replace(getattr(federation, section), **changed)})


def _member(federation, number, **changed):
    members = list(federation.members)
    members[number] = replace(members[number], **changed)
    return replace(federation, members=tuple(members))


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
    assert set(Federation.parse(TEXT).fields()) == {"format"} | set(CHANGES) | set(ELSEWHERE)


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


@settings(max_examples=30, deadline=None)
@given(
    st.floats(0.01, 1e3),
    st.floats(1e-12, 1e-3),
    st.integers(1, 2**32 - 1),
    st.floats(1e-6, 1e6),
    st.floats(0, 0.999),
    st.sampled_from(["float32", "float64"]),
    st.lists(st.integers(1, 64), min_size=1, max_size=3),
    st.text("abcXYZ019._-", min_size=1, max_size=20).filter(lambda text: text[0] not in "._-"),
    st.integers(0, 2**63 - 1),
)
def test_what_is_written_is_read_again(
    epsilon, delta, steps, rate, momentum, dtype, hidden, name, seed
):
    federation = Federation(
        name=name,
        privacy=Privacy(
            epsilon=epsilon, delta=delta, adversary="everyone", unit="example", sampling="fixed"
        ),
        training=Training(
            steps=steps, clip=rate, learning_rate=rate, momentum=momentum, dtype=dtype, batch_size=3
        ),
        model=Model(kind="mlp", features=5, classes=3, hidden=hidden, seed=seed),
        network=Network(edges=[("a", "b"), ("c", "b")], quorum=1),
        members=[Member(n, "", bytes([k]) * 32, 9 + k) for k, n in enumerate("ac")]
        + [Member("b", "[::1]:7400", bytes(32 * [7]), 5)],
    )
    again = Federation.parse(federation.to_toml())
    assert (
        again == federation
        and again.fields() == federation.fields()
        and again.to_toml() == federation.to_toml()
    )


REFUSED = [
    (("format = ", "# "), 'format must be "decor-federation-1", not None'),
    (("federation-1", "federation-9"), "not 'decor-federation-9'; other versions are not read"),
    (('name = "heart"\n', ""), "name is missing; give a name of letters"),
    (
        ('"heart"', '"my heart"'),
        "name must be a name of letters, digits, dots, dashes and underlines, 64 at most, not 'my "
        "heart'",
    ),
    (('"heart"', "3"), "name must be .* not 3"),
    (
        ("steps =", "stepz ="),
        "training.stepz is no field of a federation's file; did you mean steps",
    ),
    (("[model]", "[modell]"), "modell is no field of a federation's file; did you mean model"),
    (
        ("[model]", "[privacy.model]"),
        "privacy.model is no field of a federation's file; there are epsilon",
    ),
    (
        ("epsilon = 3.0\n", ""),
        "privacy.epsilon is missing; give a positive number of at most 1e9, such as 3.0",
    ),
    ((PRIVACY, ""), r"the section \[privacy\] is missing"),
    (
        ("epsilon = 3.0", "epsilon = 0"),
        "privacy.epsilon must be a positive number of at most 1e9, such as 3.0, not 0",
    ),
    (("epsilon = 3.0", 'epsilon = "3"'), "privacy.epsilon must be .* not '3'"),
    (("epsilon = 3.0", "epsilon = true"), "privacy.epsilon must be .* not True"),
    (("epsilon = 3.0", "epsilon = nan"), "privacy.epsilon must be .* not nan"),
    (("epsilon = 3.0", "epsilon = inf"), "privacy.epsilon must be .* not inf"),
    (("1e-5", "1"), "privacy.delta must be a number between 0 and 1, such as 1e-5, not 1"),
    (
        ('"curious"', '"average-only"'),
        "privacy.adversary must be .* or \"everyone\", not 'average-only'",
    ),
    (('"curious"', '"nobody"'), "privacy.adversary must be .* not 'nobody'"),
    (
        ('"curious"', '"colluding:4"'),
        "privacy.adversary: 4 colluding users of 4 leave nobody to protect",
    ),
    (
        ('"curious"', '"curious"\nunit = "group"'),
        'privacy.unit must be "user" or "example", not \'group\'',
    ),
    (
        ('"curious"', '"curious"\nsampling = "poisson"'),
        'privacy.sampling .* counts with privacy.unit = "example" only',
    ),
    (
        ('"curious"', '"curious"\nrelation = "add-remove"'),
        'privacy.relation .* counts with privacy.unit = "example" only',
    ),
    (('"curious"', '"curious"\nunit = "example"'), "training.batch_size is missing"),
    (("epsilon = 3.0", "sigma_cdp = 0.1\nepsilon = 3.0"), "privacy.sigma_cdp is no field"),
    (
        ("steps = 200", "steps = 0"),
        "training.steps must be a whole number from 1 to 4,294,967,295, not 0",
    ),
    (("steps = 200", "steps = 4294967296"), "training.steps must be .* not 4294967296"),
    (("steps = 200", "steps = 200.0"), "training.steps must be a whole number .* not 200.0"),
    (
        ("clip = 1.0", "clip = -1.0"),
        "training.clip must be a positive number, such as 1.0, not -1.0",
    ),
    (
        ("0.5", "0.5\nmomentum = 1"),
        "training.momentum must be a number from 0 to less than 1, not 1",
    ),
    (
        ("0.5", '0.5\nschedule = "step"'),
        'training.schedule must be "constant", "inverse-time" or "cosine", not \'step\'',
    ),
    (("0.5", '0.5\nschedule = "inverse-time"'), "needs training.horizon"),
    (("0.5", "0.5\nfinal = 0.5"), 'training.final counts with training.schedule = "cosine" only'),
    (
        ("0.5", "0.5\ngossip_rounds = 0"),
        "training.gossip_rounds must be a whole number from 1 to 10,000, not 0",
    ),
    (
        ("0.5", '0.5\naccelerate = "designed"'),
        'training.accelerate "designed" changes nothing about one gossip round',
    ),
    (("0.5", '0.5\ndtype = "float16"'), 'training.dtype must be "float32" or "float64"'),
    (
        ('kind = "logistic"', 'kind = "forest"'),
        'model.kind must be "logistic", "multinomial", "mlp" or "linear", not \'forest\'',
    ),
    (('kind = "logistic"', 'kind = "logistic"\ncode = "a:b"'), "give either model.kind"),
    (('kind = "logistic"\n', ""), "give either model.kind"),
    (('kind = "logistic"', 'code = "rm -rf"'), 'model.code must be "package.module:function"'),
    (
        ('kind = "logistic"', 'code = "a:b"'),
        "model.features 30 does not apply to model 'code'; drop it",
    ),
    (("features = 30\n", ""), "model.features is missing: model 'logistic' needs a whole number"),
    (
        ("features = 30", "features = 30\nhidden = [3]"),
        r"model.hidden \(3,\) does not apply to "
        r"model 'logistic'",
    ),
    (
        ("features = 30", "features = 30\nclasses = 3"),
        'model.classes must be 2 for "logistic", not 3',
    ),
    (
        ('"logistic"', '"mlp"\nclasses = 2\nhidden = []'),
        r"model.hidden must be a list of layers' "
        r"sizes, such as \[128\]",
    ),
    (
        ('"logistic"', '"mlp"\nclasses = 2\nhidden = [99999, 99999]'),
        "more than the 4 GB that a message holds",
    ),
    (('topology = "ring"\n', ""), "give either network.topology"),
    (('"ring"', '"moebius"'), 'network.topology must be "ring", .* or "grid", not \'moebius\''),
    (
        ('"ring"', '"random-regular"'),
        "is drawn, and might be another on another machine; write its edges",
    ),
    (('"ring"', '"ring"\nrows = 2'), "network.rows 2 counts for torus and grid only"),
    (('"ring"', '"torus"\nrows = 3'), "network.rows 3 does not divide 4 users"),
    (
        ('topology = "ring"', 'edges = ["bonn"]'),
        r"network.edges must be pairs of users, such as "
        r"\[\[\"bonn\", \"ulm\"\]\]",
    ),
    (
        ('topology = "ring"', 'edges = [["bonn", "rome"]]'),
        "network.edges names 'rome', who is no user",
    ),
    (
        ('topology = "ring"', 'edges = [["bonn", "bonn"]]'),
        "network.edges: edge bonn-bonn joins user bonn to itself",
    ),
    (
        ('topology = "ring"', 'edges = [["bonn", "ulm"], ["ulm", "bonn"]]'),
        "network.edges: edge bonn-ulm is given twice",
    ),
    (
        ('topology = "ring"', 'edges = [["bonn", "ulm"]]'),
        "network.edges: the graph has 3 parts that never hear of each other",
    ),
    (('"ring"', '"ring"\nquorum = 0'), "network.quorum must be a share above 0 and up to 1, not 0"),
    (
        ('"ring"', '"ring"\nquorum = 1.5'),
        "network.quorum must be a share above 0 and up to 1, not 1.5",
    ),
    (('"ring"', '"ring"\ntimeout = 0.0'), "network.timeout must be a positive number of seconds"),
    ((users(), ""), "users are missing"),
    ((users(), users(["bonn"])), "users: there is 1; a federation has two users or more"),
    ((users(), users(["bonn", "ulm"])), 'network.topology "ring" does not fit 2 users'),
    ((users(), users(["bonn", "ulm", "bonn"])), "users.name 'bonn' is there twice"),
    ((KEYS[1], KEYS[0]), "users.key 'decor-ed25519 .* is there twice; give every user its own"),
    (
        ("ulm.example.org", "bonn.example.org"),
        "users.address 'bonn.example.org:7400' is there twice",
    ),
    (
        ("ulm.example.org:7400", "ulm.example.org"),
        r"users.address of 'ulm': 'ulm.example.org' is no address; .* \(user 1 \(ulm\)\)",
    ),
    (
        ("ulm.example.org:7400", "ulm example:7400"),
        'users.address must be "host:port", or "" .* not \'ulm example:7400\'',
    ),
    (('name = "ulm"', 'name = "../ulm"'), r"users.name must be a name of letters.* \(user 1\)"),
    (('name = "ulm"\n', ""), "users.name of user 1 is missing"),
    ((f'key = "{KEYS[1]}"\n', ""), r"users.key of user 1 \(ulm\) is missing"),
    (
        (KEYS[1], "ssh-ed25519 AAAA"),
        r"users.key of user 1 \(ulm\): 'ssh-ed25519 AAAA' is no "
        r"public key",
    ),
    (('name = "ulm"', 'nom = "ulm"\nname = "ulm"'), r"users \(user 1 \(ulm\)\): nom is no field"),
    (
        ('name = "ulm"', 'records = 5\nname = "ulm"'),
        "users.records of 'ulm' counts with privacy.unit = \"example\" only",
    ),
    (
        (users(), users(addressless=("bonn", "ulm"))),
        "users.address is empty for 'bonn' and 'ulm', who are neighbours",
    ),
    (("name = ", "name "), "this is no TOML"),
]


@pytest.mark.parametrize(("change", "said"), REFUSED, ids=[said[:50] for _, said in REFUSED])
def test_what_cannot_be_meant_is_refused_with_its_field(change, said):
    assert change[0] in TEXT
    with pytest.raises(InputError, match=said):
        Federation.parse(TEXT.replace(*change, 1) if change[0] != "name = " else "name heart")


REFUSED_EXAMPLES = [
    (("records = 120\n", ""), "users.records of 'bonn' is missing"),
    (
        ("records = 120", "records = 19"),
        "training.batch_size 20 is larger than users.records of 'bonn', 19",
    ),
    (("records = 120", "records = 0"), "users.records must be a whole number from 1"),
    (
        ('unit = "example"', 'unit = "example"\nsampling = "fixed"\nrelation = "add-remove"'),
        "privacy.relation .* is accounted for",
    ),
]


@pytest.mark.parametrize(("change", "said"), REFUSED_EXAMPLES)
def test_example_level_refuses_what_it_cannot_account(change, said):
    assert change[0] in EXAMPLE
    with pytest.raises(InputError, match=said):
        Federation.parse(EXAMPLE.replace(*change, 1))


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


def test_two_lines_of_one_key_are_one_key():
    """Base64 leaves two bits over, so that four lines say the same."""
    other = KEYS[0][:-2] + chr(ord(KEYS[0][-2]) + 1) + "="
    assert other != KEYS[0]
    with pytest.raises(InputError, match="users.key .* is there twice"):
        Federation.parse(TEXT.replace(KEYS[1], other))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(
        InputError, match="the federation '.*nowhere.toml' cannot be read: No such file"
    ):
        Federation.read(tmp_path / "nowhere.toml")
    (tmp_path / "raw").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not a text file"):
        Federation.read(tmp_path / "raw")
    (tmp_path / "bad.toml").write_text(TEXT.replace("steps = 200", "steps = 0"))
    with pytest.raises(InputError, match="the federation '.*bad.toml': training.steps must be"):
        Federation.read(tmp_path / "bad.toml")
    (tmp_path / "good.toml").write_text(TEXT)
    assert Federation.read(str(tmp_path / "good.toml")) == Federation.parse(TEXT)


MODELS = [
    ('kind = "logistic"\nfeatures = 6', 7, decor.losses.logistic, 2),
    ('kind = "multinomial"\nfeatures = 6\nclasses = 3', 21, decor.losses.cross_entropy, 3),
    ('kind = "linear"\nfeatures = 6', 6, decor.losses.squared, 5),
    (
        'kind = "mlp"\nfeatures = 6\nclasses = 3\nhidden = [5, 4]',
        35 + 24 + 15,
        decor.losses.cross_entropy,
        3,
    ),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("model", "count", "loss", "classes"), MODELS, ids=lambda value: str(value)[:20]
)
def test_a_users_task_has_the_files_model(model, count, loss, classes, dtype):
    text = TEXT.replace(MODEL, f"\n[model]\n{model}\n").replace("clip", f'dtype = "{dtype}"\nclip')
    federation = Federation.parse(text)
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((12, 6)).astype(np.float32), np.arange(12) % classes
    task = federation.task((X, y), test=(X[:5], y[:5]))
    assert task.users == 1 and task.records == (12,) and len(task.test[0]) == 5
    assert task.parameters == federation.parameters == count and task.loss is loss
    assert {str(p.dtype) for p in task.model.parameters()} == {f"torch.{dtype}"} and str(
        task.shards[0][0].dtype
    ) == f"torch.{dtype}"
    again = federation.task((X, y))
    assert all(
        (a == b).all()
        for a, b in zip(task.model.parameters(), again.model.parameters(), strict=True)
    )


def test_a_model_may_be_public_code_whose_randomness_follows_the_seed(monkeypatch):
    import torch

    own = ModuleType("own")
    own.model = lambda: (torch.nn.Linear(6, 3), torch.nn.functional.cross_entropy)
    own.wrong = lambda: torch.nn.Linear(6, 3)
    monkeypatch.setitem(sys.modules, "own", own)
    federation = Federation.parse(BASES["code"])
    assert federation.parameters == 21
    torch.manual_seed(0)
    drawn = torch.rand(1)
    torch.manual_seed(0)
    one = federation.task((np.ones((4, 6), np.float32), np.array([0, 1, 2, 0])))
    assert torch.rand(1) == drawn, "torch's own state is left alone"
    other = _with(federation, "model", seed=1).task(
        (np.ones((4, 6), np.float32), np.array([0, 1, 2, 0]))
    )
    assert not (one.model.weight == other.model.weight).all()
    with pytest.raises(
        InputError,
        match=r"model.code 'own:wrong' must give \(torch.nn.Module, "
        r"loss\), not Linear",
    ):
        _ = _with(federation, "model", code="own:wrong").parameters
    with pytest.raises(
        InputError, match="model.code 'own:nothing': the module has no function 'nothing'"
    ):
        _ = _with(federation, "model", code="own:nothing").parameters
    with pytest.raises(
        InputError, match="model.code 'nowhere:model': the module cannot be imported"
    ):
        _ = _with(federation, "model", code="nowhere:model").parameters


def test_data_that_does_not_fit_is_refused_without_a_word_of_what_it_holds():
    federation = Federation.parse(TEXT)
    X, y = np.full((4, 30), 77.125, np.float32), np.array([0, 1, 0, 1])
    for shard, said in (
        ((X[:, :29], y), r"the data has records of shape \(29,\), and model.features is 30"),
        (
            (X, np.array([0, 1, 77, 1])),
            r"the data has a label at record 2 \(counted from 0\) that "
            r"is no class from 0 to 1",
        ),
        ((X, np.array([0, 1, 0.5, 1])), "label at record 2 .* that is no class"),
        ((X, np.array([0, 1, np.nan, 1])), "label at record 2 .* that is no class"),
        ((X, y[:, None]), "has a label that is no class"),
        (("77", None), r"must be a pair \(X, y\) of arrays"),
    ):
        with pytest.raises(InputError, match=said) as caught:
            federation.task(shard)
        assert "77" not in str(caught.value)
    with pytest.raises(InputError, match=r"the test data has records of shape \(3,\)"):
        federation.task((X, y), test=(X[:, :3], y))


def test_example_level_refuses_another_number_of_records():
    federation = Federation.parse(EXAMPLE)
    X, y = np.zeros((120, 30), np.float32), np.arange(120) % 2
    assert federation.task((X, y), user=1).records == (120,)
    with pytest.raises(
        InputError,
        match="the data has 119 records, and users.records says 120: the epsilon would not be true",
    ):
        federation.task((X[1:], y[1:]), user=1)


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


def test_a_local_plan_is_told_which_edges_would_free_it():
    fragile = Federation.parse(TEXT.replace('"ring"', '"star"'))
    said = hints(fragile)[0]
    assert "Somebody can be isolated by one user, so all noise is independent" in said
    assert "With the edges ulm-kiel, ulm-jena as well, the same budget takes sigma_cdp" in said


def test_edges_are_added_where_somebody_can_call():
    assert joined(decor.ring(8), 3) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert joined(decor.complete(4), 3) == [] and joined(decor.star(4), 2) == [(1, 2), (1, 3)]
    assert (1, 2) not in joined(decor.star(4), 2, frozenset({1, 2}))
    assert joined(decor.star(4), 2, frozenset({1, 2, 3})) == []


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
