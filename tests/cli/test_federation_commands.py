"""decor keygen and decor federation as people meet them: real processes, exit codes, what is
printed where.
"""

import json
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import decor
from decor.federation.federation import Federation
from decor.learning import own_data
from decor.net.identity import Identity, public_of
from decor.net.ledger import Ledger

COMMAND = [str(Path(sys.executable).parent / "decor")]


def run(*arguments, check=0, command=COMMAND, **kwargs):
    done = subprocess.run(
        [*command, *map(str, arguments)], capture_output=True, text=True, timeout=120, **kwargs
    )
    assert done.returncode == check, done.stderr
    assert "Traceback" not in done.stderr
    if check == 2:
        assert done.stdout == "" and len(done.stderr.strip().splitlines()) == 1, done.stderr
    return done


def test_keygen_keeps_the_key_and_prints_the_line(tmp_path):
    line = run("keygen", "bonn", "--output", tmp_path).stdout.strip()
    file = tmp_path / "bonn.key"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert Identity.load(file).line == line and len(public_of(line)) == 32
    told = json.loads(run("keygen", "ulm", "--output", tmp_path / "deep" / "er", "--json").stdout)
    assert told == {
        "name": "ulm",
        "file": str(tmp_path / "deep/er/ulm.key"),
        "public": Identity.load(told["file"]).line,
    }
    before = file.read_bytes()
    assert (
        "a key is never overwritten" in run("keygen", "bonn", "--output", tmp_path, check=2).stderr
    )
    assert file.read_bytes() == before
    assert (
        "NAME must be a name of letters" in run("keygen", "../bonn", check=2, cwd=tmp_path).stderr
    )


def test_without_cryptography_keygen_says_what_to_install(tmp_path):
    code = (
        "import sys; sys.modules['cryptography'] = None; from decor.cli.main import main; "
        "sys.exit(main(sys.argv[1:]))"
    )
    done = run("keygen", "bonn", check=2, command=[sys.executable, "-c", code], cwd=tmp_path)
    assert "pip install '.[peer]'" in done.stderr and not list(tmp_path.iterdir())


@pytest.mark.parametrize("heavy", ["torch", "cryptography", "networkx"])
def test_the_commands_are_listed_without(heavy):
    code = (
        "import sys; from decor.cli.main import parser; parser().format_help(); "
        f"sys.exit({heavy!r} in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("words", [["keygen"], ["federation", "new"], ["federation", "check"]])
def test_help_shows_an_example(here, words):
    assert "example" in here(*words, "--help").stdout


@pytest.fixture(scope="module")
def lines():
    return {name: Identity.new().line for name in ("bonn", "ulm", "kiel", "jena")}


def users(lines, records=""):
    return [
        word
        for name, line in lines.items()
        for word in ("--user", f"{name},{name}.example.org:7400,{line}{records}")
    ]


def test_a_federation_of_real_users_is_written_once_and_checked(here, tmp_path, lines):
    file = tmp_path / "heart.toml"
    ask = [
        "federation",
        "new",
        "--output",
        file,
        "--name",
        "heart",
        "--epsilon",
        3,
        "--steps",
        200,
        "--learning-rate",
        0.5,
    ]
    out = here(*ask, "--features", 30, *users(lines)).stdout
    federation = Federation.read(file)
    assert (
        federation.name == "heart"
        and federation.training.steps == 200
        and federation.privacy.adversary == "curious"
    )
    assert [m.key for m in federation.members] == list(
        lines.values()
    ) and federation.network.topology == "ring"
    assert "sigma" not in file.read_text(), "noise is derived, never written"
    for words in (
        "wrote",
        "sigma_cdp",
        "curious",
        "everyone",
        "bonn.example.org:7400",
        "What would make it stronger",
    ):
        assert words in out
    checked = here("federation", "check", file).stdout
    assert out == f"wrote {file}\n{checked}"
    before = file.read_bytes()
    said = here(*ask, "--features", 30, *users(lines), check=2).stderr
    assert "--overwrite, or name another file by --output" in said and file.read_bytes() == before


def test_a_federation_is_replaced_on_demand_unless_it_has_run(here, tmp_path, lines):
    file = tmp_path / "heart.toml"
    ask = [
        "federation",
        "new",
        "--output",
        file,
        "--name",
        "heart",
        "--features",
        30,
        *users(lines),
        "--overwrite",
        "--epsilon",
    ]
    here(*ask, 3)
    here(*ask, 4)
    federation = Federation.read(file)
    assert federation.privacy.epsilon == 4
    with Ledger(tmp_path / "bonn.ledger") as ledger:
        ledger.record(ledger.begin(bytes(32), "of another federation"), 0, b"message")
        assert "bonn.ledger' is open" in here(*ask, 5, check=2).stderr
    here(*ask, 5)
    with Ledger(tmp_path / "bonn.ledger") as ledger:
        ledger.record(ledger.begin(Federation.read(file).digest, "of this one"), 0, b"message")
    before = file.read_bytes()
    assert "has run" in here(*ask, 6, check=2).stderr and file.read_bytes() == before
    (tmp_path / "thesis.toml").write_text("precious = true")
    ask[3] = tmp_path / "thesis.toml"
    assert "no federation that could be overwritten" in here(*ask, 3, check=2).stderr
    assert (tmp_path / "thesis.toml").read_text() == "precious = true"


def test_check_answers_as_the_library_does(tmp_path, lines):
    file = tmp_path / "heart.toml"
    ask = [
        "federation",
        "new",
        "--output",
        file,
        "--name",
        "heart",
        "--epsilon",
        3,
        "--features",
        30,
        *users(lines),
        "--json",
    ]
    made = json.loads(run(*ask).stdout)
    answer = json.loads(run("federation", "check", file, "--json").stdout)
    assert made == answer
    federation = Federation.read(file)
    guarantee = federation.guarantee()
    assert (answer["sigma_cdp"], answer["sigma_cor"]) == (
        federation.plan.sigma_cdp,
        federation.plan.sigma_cor,
    )
    assert (
        answer["epsilon"] == guarantee.epsilon <= 3
        and answer["delta"] == 1e-5
        and answer["digest"] == federation.digest.hex()
    )
    assert [row["adversary"] for row in answer["adversaries"]] == [
        "eavesdropper",
        "curious",
        "colluding:2",
        "everyone",
    ]
    for row in answer["adversaries"]:
        assert (
            row["epsilon"] == federation.guarantee(decor.Adversary.parse(row["adversary"])).epsilon
        )
    assert [user["epsilon"] for user in answer["users"]] == guarantee.per_user.tolist()
    assert answer["parameters"] == 31 and answer["message_bytes"] == 8 + 16 + 4 * 31
    assert 1 <= len(answer["hints"]) <= 3 and answer["warnings"] == []


def test_graphs_are_written_by_name_or_by_their_edges(here, tmp_path, lines):
    graph = tmp_path / "graph.txt"
    graph.write_text("bonn ulm\nulm kiel\nkiel jena\njena bonn\nbonn kiel\n")
    ask = [
        "federation",
        "new",
        "--name",
        "heart",
        "--epsilon",
        3,
        "--features",
        30,
        *users(lines),
        "--json",
        "--output",
    ]
    here(*ask, tmp_path / "a", "--topology", "torus")
    here(*ask, tmp_path / "b", "--topology", "random-regular", "--degree", 3)
    here(*ask, tmp_path / "c", "--edges", "bonn:ulm,ulm:kiel,kiel:jena")
    here(*ask, tmp_path / "d", "--graph", graph)
    torus, regular, path, own = (Federation.read(tmp_path / name) for name in "abcd")
    assert (torus.network.topology, torus.network.rows) == ("torus", 2)
    assert regular.network.edges is not None and regular.topology.edge_count == 6
    assert path.topology.edges.tolist() == [[0, 1], [1, 2], [2, 3]] and own.topology.edge_count == 5
    two = dict(list(lines.items())[:2])
    here(
        "federation",
        "new",
        "--name",
        "x",
        "--epsilon",
        3,
        "--features",
        3,
        *users(two),
        "--output",
        tmp_path / "e",
    )
    assert Federation.read(tmp_path / "e").network.topology == "path"


def test_every_option_reaches_its_field(here, tmp_path, lines):
    words = (
        "--delta 1e-6 --adversary eavesdropper --unit example --batch-size 8 --sampling poisson "
        "--relation replace --ratio 30 "
    )
    words += (
        "--steps 20 --clip 2 --learning-rate 0.3 --schedule cosine --final 0.1 --momentum "
        "0.5 --weight-decay 0.01 "
    )
    words += (
        "--gossip-rounds 3 --accelerate chebyshev --final-gossip-rounds 4 --dtype float64 --model "
        "mlp --features 6 --classes 3 "
    )
    words += "--hidden 5,4 --activation tanh --seed 9 --timeout 5 --quorum 1 --patience 60"
    file = tmp_path / "all.toml"
    here(
        "federation",
        "new",
        "--output",
        file,
        "--name",
        "all",
        "--epsilon",
        3,
        *words.split(),
        *users(lines, ",50"),
    )
    held = Federation.read(file).fields()
    given = dict(zip(words.split()[::2], words.split()[1::2], strict=True))
    for option, value in given.items():
        name = {"model": "kind"}.get(option[2:], option[2:].replace("-", "_"))
        (field,) = [f for f in held if f.endswith(f".{name}")]
        kept = held[field]
        assert (
            (list(kept) == [5, 4])
            if name == "hidden"
            else str(kept) == value or float(kept) == float(value)
        )
    assert held["users.records"] == [50] * 4


BAD = [
    ("--epsilon 3", "give either --user NAME,ADDRESS,KEY for every user, or --task NAME"),
    ("--epsilon 3 --task breast-cancer --user a,b,c", "give either --user"),
    ("--task breast-cancer", "required: --epsilon"),
    (
        "--epsilon 3 --task iris",
        "there is no trial of task 'iris'; there are breast-cancer, digits, a9a, mnist",
    ),
    ("--epsilon 3 --task least-squares", "there is no trial of task"),
    ("--epsilon 3 --user a,b,c", "give --name"),
    ("--epsilon 3 --name x --user a,b", "must be NAME,ADDRESS,KEY"),
    (
        "--epsilon 3 --name x --user a,b:1,key,many",
        "the number of records must be a whole number, not 'many'",
    ),
    (
        "--epsilon 3 --name x --features 3 --user a,b:1,key",
        "users.key of user 0 (a): 'key' is no public key",
    ),
    ("--epsilon 3 --name x --users 3 --user a,b:1,key", "--users is for --task"),
    (
        "--epsilon 3 --task breast-cancer --topology ring --users 2",
        "ring takes a whole number from 3",
    ),
    ("--epsilon 3 --task breast-cancer --adversary average-only", "privacy.adversary must be"),
    ("--epsilon 3 --task breast-cancer --edges bonn:rome", "network.edges names 'rome'"),
    (
        "--epsilon 3 --task breast-cancer --edges bonn:ulm --topology ring",
        "drop --topology and --graph",
    ),
    ("--epsilon 3 --task breast-cancer --unit example", "training.batch_size is missing"),
    ("--epsilon 0 --task breast-cancer", "privacy.epsilon must be a positive number"),
]


@pytest.mark.parametrize(("words", "said"), BAD, ids=[said[:40] for _, said in BAD])
def test_bad_input_is_one_clear_sentence_and_leaves_nothing(here, tmp_path, words, said):
    done = here("federation", "new", "--output", tmp_path / "out", *words.split(), check=2)
    assert said in done.stderr and not (tmp_path / "out").exists()


def test_check_says_which_field_is_wrong(here, tmp_path, lines):
    file = tmp_path / "heart.toml"
    here(
        "federation",
        "new",
        "--output",
        file,
        "--name",
        "heart",
        "--epsilon",
        3,
        "--features",
        30,
        *users(lines),
    )
    file.write_text(file.read_text().replace("epsilon = 3.0", 'epsilon = "3"'))
    assert (
        "privacy.epsilon must be a positive number"
        in here("federation", "check", file, check=2).stderr
    )
    assert "cannot be read" in here("federation", "check", tmp_path / "nowhere", check=2).stderr


@pytest.fixture(scope="module")
def trial(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trial") / "out"
    ask = [
        "--task",
        "breast-cancer",
        "--users",
        8,
        "--topology",
        "ring",
        "--epsilon",
        10,
        "--output",
        folder,
        "--json",
    ]
    return folder, json.loads(run("federation", "new", *ask).stdout)


def test_a_trial_has_everybodys_key_and_data(here, trial):
    folder, told = trial
    federation = Federation.read(folder / "federation.toml")
    assert (
        told["file"] == str(folder / "federation.toml")
        and told["epsilon"] <= 10
        and told["digest"] == federation.digest.hex()
    )
    assert len(federation.members) == 8 and len({m.address for m in federation.members}) == 8
    task = decor.tasks.breast_cancer(users=8, seed=0)
    for k, member in enumerate(federation.members):
        identity = Identity.load(folder / "keys" / f"{member.name}.key")
        assert federation.number_of(identity.public) == k and member.address.startswith(
            "127.0.0.1:"
        )
        X, y = own_data.read(folder / "data" / f"{member.name}.npz", features=30)
        assert (X == task.shards[k][0].numpy()).all() and (y == task.shards[k][1].numpy()).all()
        assert federation.task((X, y)).parameters == federation.parameters == 31
    with np.load(folder / "test.npz") as test:
        assert (test["X"] == task.test[0].numpy()).all() and (
            test["y"] == task.test[1].numpy()
        ).all()
    said = here(
        "federation", "new", "--task", "breast-cancer", "--epsilon", 10, "--output", folder, check=2
    ).stderr
    assert "--overwrite, or name another folder by --output" in said


def test_a_trial_is_replaced_on_demand_and_what_else_is_there_stays(here, tmp_path):
    folder = tmp_path / "trial"
    ask = [
        "federation",
        "new",
        "--task",
        "breast-cancer",
        "--epsilon",
        10,
        "--overwrite",
        "--output",
        folder,
        "--users",
    ]
    here(*ask, 5)
    keys = {path.name: path.read_bytes() for path in (folder / "keys").iterdir()}
    (folder / "notes.txt").write_text("mine")
    (folder / "keys" / "other.key").write_text("mine")
    here(*ask, 4)
    federation = Federation.read(folder / "federation.toml")
    assert len(federation.members) == 4 and (folder / "notes.txt").read_text() == "mine"
    assert {path.name for path in (folder / "keys").iterdir()} == {
        "other.key",
        *(f"{m.name}.key" for m in federation.members),
    }
    assert {path.name for path in (folder / "data").iterdir()} == {
        f"{m.name}.npz" for m in federation.members
    }
    for k, member in enumerate(federation.members):
        identity = Identity.load(folder / "keys" / f"{member.name}.key")
        assert (
            federation.number_of(identity.public) == k
            and keys[f"{member.name}.key"] != identity.line
        )


@pytest.mark.parametrize("where", ["run", "keys"])
def test_a_trial_that_runs_or_has_run_is_never_overwritten(here, tmp_path, where):
    folder = tmp_path / "trial"
    ask = [
        "federation",
        "new",
        "--task",
        "breast-cancer",
        "--epsilon",
        10,
        "--overwrite",
        "--output",
        folder,
        "--users",
        3,
    ]
    here(*ask)
    (folder / where).mkdir(exist_ok=True)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with Ledger(folder / where / "ulm.ledger") as ledger:
        run_ = ledger.begin(Federation.read(folder / "federation.toml").digest, "plan")
        assert "is open" in here(*ask, check=2).stderr
        ledger.record(run_, 0, b"message")
    said = here(*ask, check=2).stderr
    assert (
        "has run" in said
        and "ulm.ledger' says what its data has paid for 1 messages" in said
        and "remove it by hand" in said
    )
    assert all(path.read_bytes() == held for path, held in before.items())


def test_what_is_no_trial_is_never_overwritten(here, tmp_path):
    folder = tmp_path / "mine"
    (folder / "keys").mkdir(parents=True)
    (folder / "keys" / "bonn.key").write_text("precious")
    ask = [
        "federation",
        "new",
        "--task",
        "breast-cancer",
        "--epsilon",
        10,
        "--overwrite",
        "--output",
        folder,
    ]
    assert "no federation that could be overwritten" in here(*ask, check=2).stderr
    assert (folder / "keys" / "bonn.key").read_text() == "precious" and len(
        list(folder.rglob("*"))
    ) == 2


def test_a_trial_learns(trial):
    """In the simulator, with the file's own plan, recipe and data."""
    federation = Federation.read(trial[0] / "federation.toml")
    task, recipe = (
        decor.tasks.breast_cancer(users=[member.name for member in federation.members], seed=0),
        federation.recipe,
    )
    reached = [
        decor.train(
            task,
            federation.plan,
            learning_rate=federation.learning_rate,
            gossip_rounds=recipe.gossip.rounds,
            accelerate=recipe.gossip.accelerate,
            final_gossip_rounds=recipe.final_gossip.rounds,
            engine=decor.Vectorised(seed=seed),
            evaluate_every=federation.training.steps,
        ).metrics["accuracy"]
        for seed in range(5)
    ]
    assert np.mean(reached) > 0.92, "always saying benign is right in 63 %"


def test_a_trial_at_example_level_counts_the_records(here, tmp_path):
    ask = [
        "--task",
        "breast_cancer",
        "--users",
        14,
        "--epsilon",
        10,
        "--unit",
        "example",
        "--batch-size",
        8,
    ]
    here("federation", "new", *ask, "--topology", "complete", "--output", tmp_path / "t")
    federation = Federation.read(tmp_path / "t" / "federation.toml")
    task = decor.tasks.breast_cancer(users=14, seed=0)
    assert tuple(m.records for m in federation.members) == task.records
    assert [m.name for m in federation.members][:2] == ["bonn", "ulm"] and federation.members[
        12
    ].name == "bonn-2"
    X, y = own_data.read(tmp_path / "t" / "data" / "bonn-2.npz")
    assert federation.task((X, y), user=12).records == (task.records[12],)
    rows = [
        line.split()
        for line in here(
            "federation", "check", tmp_path / "t" / "federation.toml"
        ).stdout.splitlines()
    ]
    assert ["user", "records", "address", "neighbours", "epsilon"] in rows
    listed = [
        (row[0], int(row[1]))
        for row in rows
        if len(row) == 5 and row[0] in federation.topology.labels
    ]
    assert listed == [(member.name, member.records) for member in federation.members]
