"""The next federation: what changes, what stays, and what it costs together with the last."""

from dataclasses import replace

import numpy as np
import pytest
from federation_files import BASES, EXAMPLE, KEYS, TEXT, with_member, with_section
from ledgers import open_ledger
from oracles import never_below, true_delta, true_worst

import decor
from decor.errors import InputError, PrivacyStop
from decor.federation.federation import Federation, Member
from decor.federation.renewal import Changes, last_model, next_name, renew
from decor.federation.spending import figure, open_run
from decor.federation.start_model import StartModel
from decor.federation.terms import Terms
from decor.net.identity import public_of
from decor.net.ledger import Ledger
from decor.privacy.composition import Question
from decor.results.run import Run
from decor.training.manifest import RunManifest

EDGES = Federation.parse(BASES["edges"])
PLAIN = Federation.parse(TEXT)
START = StartModel({"weight": np.ones((1, 30), "<f4"), "bias": np.ones(1, "<f4")})


def joining(name, number=6, address="there.example.org:7400", records=None):
    return Member(name, address, public_of(KEYS[number]), records)


@pytest.mark.parametrize(
    ("name", "after"),
    [
        ("heart", "heart-2"),
        ("heart-2", "heart-3"),
        ("heart-9", "heart-10"),
        ("heart-2026-4", "heart-2026-5"),
        ("2026", "2026-2"),
        ("a-b", "a-b-2"),
    ],
)
def test_the_next_name_has_the_next_number(name, after):
    assert next_name(name) == after


def test_nothing_changes_but_the_name_and_the_model_to_start_from():
    new, attached = renew(PLAIN, Changes(), START)
    before, after = PLAIN.fields(), new.fields()
    assert after.pop("model.start_sha256") == START.sha256 and attached == ()
    assert {name for name in before if before[name] != after[name]} == {"name"}
    assert new.plan == PLAIN.plan and new.digest != PLAIN.digest
    # and it is read as it was written
    assert Federation.parse(new.to_toml()).digest == new.digest


def test_without_a_model_training_begins_anew():
    renewed, _ = renew(PLAIN, Changes(), START)
    again, _ = renew(renewed, Changes())
    assert again.model.start_sha256 is None and again.name == "heart-3"


def test_members_leave_join_and_change_and_the_others_keep_their_places():
    changes = Changes(
        remove=["ulm"],
        add=[joining("trier")],
        members={"bonn": {"public": public_of(KEYS[7])}, "jena": {"address": "new.example:1"}},
    )
    new, _ = renew(PLAIN, changes)
    assert [m.name for m in new.members] == ["bonn", "kiel", "jena", "trier"]
    assert new.members[0] == replace(PLAIN.members[0], public=public_of(KEYS[7]))
    assert new.members[1] == PLAIN.members[2]
    assert new.members[2] == replace(PLAIN.members[3], address="new.example:1")


def test_budget_training_and_network_may_change():
    changes = Changes(
        name="lung",
        privacy={"epsilon": 1.5, "adversary": "eavesdropper"},
        training={"steps": 20, "learning_rate": 0.1},
        network={"timeout": 5.0},
    )
    new, _ = renew(PLAIN, changes)
    assert (new.name, new.training.steps, new.network.timeout) == ("lung", 20, 5.0)
    assert 1.49 < new.guarantee().epsilon <= 1.5
    assert new.training.clip == PLAIN.training.clip and new.model == PLAIN.model


def test_records_change_and_who_joins_has_some():
    old = Federation.parse(EXAMPLE)
    changes = Changes(members={"kiel": {"records": 200}}, add=[joining("trier", records=60)])
    new, _ = renew(old, changes)
    assert [m.records for m in new.members] == [120, 120, 200, 120, 60]
    with pytest.raises(InputError, match=r"users.records of 'trier' is missing.*--records"):
        renew(old, Changes(add=[joining("trier")]))


# graphs


def test_a_named_graph_is_kept():
    new, attached = renew(PLAIN, Changes(add=[joining("trier")]))
    assert (new.network.topology, new.topology.edge_count, attached) == ("ring", 5, ())


@pytest.mark.parametrize(("count", "rows"), [(2, 2), (5, 3)])
def test_rows_of_a_grid_are_kept_where_they_fit(count, rows):
    old = Federation.parse(BASES["grid"])
    more = [joining(f"new-{k}", 4 + k, f"new-{k}.example:1") for k in range(count)]
    if count == 5:
        old = with_section(old, "network", rows=4)
    new, _ = renew(old, Changes(add=more))
    assert new.network.topology == "grid" and new.network.rows == rows


def test_edges_of_those_who_leave_go_and_those_who_join_get_the_least_connected_neighbours():
    # bonn - ulm - kiel - jena - bonn: everyone has two
    new, attached = renew(EDGES, Changes(remove=["jena"], add=[joining("trier")]))
    # kiel and bonn have lost one
    assert attached == (("bonn", "trier"),)
    assert set(new.network.edges) == {("bonn", "ulm"), ("ulm", "kiel"), ("bonn", "trier")}
    new, attached = renew(EDGES, Changes(add=[joining("trier"), joining("mainz", 7, "m.de:1")]))
    assert attached == (("bonn", "trier"), ("ulm", "trier"), ("kiel", "mainz"), ("jena", "mainz"))
    assert sorted(new.topology.degrees.tolist()) == [2, 2, 3, 3, 3, 3]


def test_who_cannot_be_reached_gets_neighbours_that_can():
    old = with_member(EDGES, 0, address="")
    new, attached = renew(old, Changes(add=[joining("trier", address="")]))
    assert attached == (("ulm", "trier"), ("kiel", "trier"))
    assert new.topology.is_connected


def test_edges_that_are_given_are_the_ones_that_are_taken():
    changes = Changes(add=[joining("trier")], edges=(("trier", "kiel"), ("bonn", "kiel")))
    new, attached = renew(EDGES, changes)
    assert attached == () and set(EDGES.network.edges) < set(new.network.edges)
    assert {("kiel", "trier"), ("bonn", "kiel")} < set(new.network.edges)


def test_another_graph_takes_the_place_of_edges():
    changes = Changes(topology="complete", add=[joining("trier")])
    new, attached = renew(EDGES, changes)
    assert (new.network.topology, new.network.edges, attached) == ("complete", None, ())


PATH = replace(
    EDGES,
    network=replace(EDGES.network, edges=(("bonn", "ulm"), ("ulm", "kiel"), ("kiel", "jena"))),
)
REFUSED = {
    "no such member": (PLAIN, {"remove": ["rome"]}, "'rome' is no member of heart; its members"),
    "no such key": (PLAIN, {"members": {"rome": {}}}, "'rome' is no member of heart"),
    "removed and changed": (
        PLAIN,
        {"remove": ["ulm"], "members": {"ulm": {"address": ""}}},
        "'ulm' is removed, and cannot change",
    ),
    "a name twice": (PLAIN, {"add": [joining("ulm")]}, "users.name 'ulm' appears more than once"),
    "a key twice": (
        PLAIN,
        {"members": {"bonn": {"public": public_of(KEYS[1])}}},
        "users.key .* appears more than once",
    ),
    "the old name": (PLAIN, {"name": "heart"}, "that of the old one; take another with --name"),
    "two are no ring": (PLAIN, {"remove": ["ulm", "kiel"]}, '"ring" does not fit 2.*--topology'),
    "one is left": (PLAIN, {"remove": ["ulm", "kiel", "jena"]}, "needs at least two"),
    "parts": (PATH, {"remove": ["kiel"]}, "2 parts that are not connected.*--edge"),
    "an edge to nobody": (EDGES, {"edges": (("bonn", "rome"),)}, "'rome', which is not a user"),
    "an edge twice": (EDGES, {"edges": (("ulm", "bonn"),)}, "network.edges: .*bonn"),
    "edges of a ring": (PLAIN, {"edges": (("bonn", "kiel"),)}, "this one is a ring; drop it"),
    "too many colluders": (
        with_section(PLAIN, "privacy", adversary="colluding:3"),
        {"remove": ["jena"]},
        "3 colluding users of 3 leave no user.*--adversary",
    ),
    "a batch above the records": (
        Federation.parse(EXAMPLE),
        {"members": {"ulm": {"records": 10}}},
        "batch_size 20 is larger than users.records of 'ulm', 10",
    ),
    "a budget": (PLAIN, {"privacy": {"epsilon": -1.0}}, "privacy.epsilon must be a positive"),
    "a delta": (PLAIN, {"privacy": {"delta": 0.01}}, "privacy.delta: delta 0.01 is too large"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_run_is_refused_with_the_way_out(kind):
    old, changes, said = REFUSED[kind]
    with pytest.raises(InputError, match=said):
        renew(old, Changes(**changes))


def test_a_model_of_another_shape_is_refused():
    other = StartModel({"weight": np.ones((1, 29), "<f4"), "bias": np.ones(1, "<f4")})
    with pytest.raises(InputError, match=r"does not fit the federation's \[model\]"):
        renew(PLAIN, Changes(), other)


# the last model


def save_run(folder, federation, digest=None, simulated=False):
    """The folder of a node of this federation."""
    digest = federation.digest.hex() if digest is None else digest
    engine = {"name": "vectorised" if simulated else "peers"}
    noise = None if simulated else {"kind": "grid", "distance": 0.0}
    manifest = RunManifest(simulated=simulated, engine=engine, noise=noise, federation=digest)
    module = decor.models.logistic(30)
    models = {name: value.detach()[None] + 1 for name, value in module.named_parameters()}
    Run(federation.plan, {"step": [1]}, models, 1, None, manifest.to_json()).save(folder)
    return folder


def test_the_last_model_is_that_of_a_run_of_the_old_federation(tmp_path):
    start = last_model(PLAIN, save_run(tmp_path / "run", PLAIN))
    assert set(start.parameters) == {"weight", "bias"}
    assert np.array_equal(start.parameters["bias"], [1.0])


def test_a_model_that_no_ledger_accounts_for_is_refused(tmp_path):
    other = save_run(tmp_path / "other", PLAIN, digest="00" * 32)
    simulation = save_run(tmp_path / "simulation", PLAIN, simulated=True)
    # the file was changed after the run
    changed = with_section(PLAIN, "training", steps=201)
    run = save_run(tmp_path / "run", PLAIN)
    for old, folder in ((PLAIN, other), (PLAIN, simulation), (changed, run)):
        with pytest.raises(InputError, match="nothing says that its model is covered by"):
            last_model(old, folder)
    file = tmp_path / "any.safetensors"
    file.write_bytes(START.file_bytes)
    with pytest.raises(InputError, match="does not say what its model has cost; give --start the"):
        last_model(PLAIN, file)


def test_the_model_that_the_old_federation_began_with_serves_again(tmp_path):
    file = tmp_path / "heart.start.safetensors"
    file.write_bytes(START.file_bytes)
    never_run, _ = renew(PLAIN, Changes(), START)
    assert last_model(never_run, file).sha256 == START.sha256


# what renewals cost together


def year():
    """Three quarters: one joins, one leaves, one has a new key."""
    first = with_section(EDGES, "training", steps=20)
    second, _ = renew(first, Changes(add=[joining("trier")], privacy={"epsilon": 2.0}), START)
    new_key = {"bonn": {"public": public_of(KEYS[7])}}
    changes = Changes(remove=["kiel"], members=new_key, training={"steps": 10})
    third, _ = renew(second, changes, START)
    return first, second, third


def exact_epsilon(federations, name):
    """What a user's data has spent in all of them, against one curious user in each: mu^2 add up,
    with leverages from inverses of 80 digits, every user in turn as the curious one.
    """
    mu_squared = 0
    for each in federations:
        number = [member.name for member in each.members].index(name)
        worst = true_worst(each.topology, each.plan.sigma_cdp, each.plan.sigma_cor, 1)[number]
        mu_squared += (2 * each.training.clip) ** 2 * each.training.steps * worst
    low, high = 0.0, 100.0
    for _ in range(80):
        middle = (low + high) / 2
        # a thousandth of delta is left to the noise tables
        fits = true_delta(middle, mu_squared**0.5) <= 0.999 * 1e-5
        low, high = (low, middle) if fits else (middle, high)
    return high


@pytest.mark.parametrize("name", ["bonn", "ulm", "jena"])
def test_three_quarters_cost_exactly_what_they_compose_to_and_the_limit_is_that(name, tmp_path):
    federations = year()
    exact = exact_epsilon(federations, name)
    assert 3.0 < exact < 3.0 + 2.0 + 2.0, "neither one quarter alone nor their sum"
    # a limit a little below refuses the third quarter; a little above allows it
    for limit, allowed in ((exact * (1 - 1e-5), False), (exact * (1 + 1e-6), True)):
        path = tmp_path / f"{allowed}.ledger"
        Ledger.create(path, bytes(32), "patients", limit, 1e-5)
        with Ledger(path) as ledger:
            for quarter, each in enumerate(federations):
                terms = Terms.of(each)
                number = [member.name for member in each.members].index(name)
                if quarter == 2 and not allowed:
                    with pytest.raises(PrivacyStop, match=f"with {each.name} it comes to"):
                        open_run(ledger, terms, number)
                    assert len(ledger.entries()) == 2, "nothing has begun"
                    continue
                run, _ = open_run(ledger, terms, number)
                for step in range(each.training.steps):
                    ledger.record(run, step, b"message")
                ledger.end(run, "finished")
            if allowed:
                total = figure(ledger.entries(), Question("user", "replace", 1), 1e-5)
                assert never_below(total.promised, exact, 1e-6)


def test_without_a_limit_a_second_quarter_needs_one(tmp_path):
    first, second, _ = year()
    with open_ledger(tmp_path / "ledger") as ledger:
        run, _ = open_run(ledger, Terms.of(first), 0)
        for step in range(20):
            ledger.record(run, step, b"message")
        ledger.end(run, "finished")
        with pytest.raises(PrivacyStop, match="can allow it with --allow"):
            open_run(ledger, Terms.of(second), 0)
