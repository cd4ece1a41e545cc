"""`decor federation renew`: the next quarter's file, and the model that it starts from."""

import json
import shutil
from pathlib import Path

import pytest

from decor.federation.federation import Federation
from decor.federation.start_model import StartModel
from decor.net.identity import Identity
from decor.net.ledger_reading import read_entries
from decor.results.run import Run


def renew(folder, output, *more, start="run/bonn"):
    old, new = folder / "federation.toml", folder / output
    given = [] if start is None else ["--start", folder / start]
    return "federation", "renew", old, "--output", new, *given, *more


def test_the_next_file_starts_from_the_last_model(here, trained):
    said = here(*renew(trained, "q2.toml", "--epsilon", "2", "--steps", "2")).stdout
    new, model = Federation.read(trained / "q2.toml"), trained / "q2.start.safetensors"
    assert new.name == "breast-cancer-2" and new.privacy.epsilon == 2 and new.training.steps == 2
    start, last = StartModel.read(model), Run.load(trained / "run" / "bonn").average_model
    assert new.model.start_sha256 == start.sha256
    assert all((start.parameters[name] == last[name].numpy()).all() for name in last)
    assert said.startswith(f"wrote {trained / 'q2.toml'}, {model}\n")
    assert "Send q2.toml and q2.start.safetensors to all members. Both are public" in said
    # the same as check, which finds the model beside the file, and then what is to be done
    checked = here("federation", "check", trained / "q2.toml").stdout
    assert checked in said and f"begins with the model {model} (SHA-256" in checked
    found = json.loads(here("federation", "check", trained / "q2.toml", "--json").stdout)
    assert found["start_model"] == {
        "sha256": start.sha256,
        "file": str(model),
        "problem": None,
    }


def test_it_is_trained_from_that_model_and_from_no_other(here, trained, tmp_path):
    here(*renew(trained, "small.toml", "--learning-rate", "1e-9", "--json"))
    file, model = trained / "small.toml", trained / "small.start.safetensors"
    ledgers = "--ledgers", trained / "run"
    here("up", file, "--output", tmp_path / "run", *ledgers)
    # after steps that hardly move: far from zero, and where the last run had come to
    start = StartModel.read(model).parameters
    for name in ("bonn", "ulm", "kiel"):
        end = Run.load(tmp_path / "run" / name).average_model
        assert abs(start["weight"]).max() > 0.01
        assert abs(end["weight"].numpy() - start["weight"]).max() < 1e-4
    kept = model.read_bytes()
    model.unlink()
    up = "up", file, *ledgers, "--output"
    said = here(*up, tmp_path / "none", check=2).stderr
    assert "small.start.safetensors' is not there; get it from the member who sent" in said
    wrong = here(*up, tmp_path / "none", "--start", trained / "run/ulm", check=2)
    assert "holds a model of SHA-256" in wrong.stderr
    assert "would refuse to start" in here("federation", "check", file).stdout
    # the folder that it was taken from is as good as the file
    here(*up, tmp_path / "again", "--start", trained / "run/bonn")
    model.write_bytes(kept)


def test_a_node_refuses_another_model_before_its_ledger_knows_of_a_run(here, trained, tmp_path):
    here(*renew(trained, "own.toml", "--json"))
    ledger, key = tmp_path / "ulm.ledger", trained / "keys/ulm.key"
    here("ledger", "new", ledger, "--identity", key)
    node = ["node", trained / "own.toml", "--identity", key, "--data", trained / "data/ulm.npz"]
    said = here(*node, "--ledger", ledger, "--start", trained / "run/ulm", check=2).stderr
    assert "holds a model of SHA-256" in said and "--start" in said
    assert read_entries(ledger) == [] and not Path("run-ulm").exists()
    node[1] = trained / "federation.toml"
    said = here(*node, "--ledger", ledger, "--start", trained / "run/ulm", check=2).stderr
    assert "begins with new weights; drop --start" in said and read_entries(ledger) == []


def test_members_are_changed_as_the_options_say(here, trained):
    key, other = Identity.new().line, Identity.new().line
    said = here(
        *renew(trained, "members.toml", "--name", "hearts", "--remove", "kiel"),
        *("--add", f"trier,,{other}", "--replace-key", f"bonn={key}"),
        *("--address", "ulm=ulm.example.org:7400"),
    ).stdout
    new = Federation.read(trained / "members.toml")
    assert new.name == "hearts" and [m.name for m in new.members] == ["bonn", "ulm", "trier"]
    assert (new.members[0].key, new.members[2].key) == (key, other)
    assert (new.members[1].address, new.members[2].address) == ("ulm.example.org:7400", "")
    assert "bonn has a new key: before its node starts there, decor ledger adopt" in said
    assert "trier joins: decor ledger new" in said


def test_the_operator_of_each_relay_is_to_get_the_new_file_too(here, trained):
    """A relay that does not know the new file refuses all of its users."""
    one, two = ("relay://one.example.org:7500", "relay://two.example.org:7500")
    both = f"ulm.example.org:7400 {one} {two}"
    addresses = "--address", f"bonn={one}", "--address", f"ulm={both}"
    todo = json.loads(here(*renew(trained, "q5.toml", *addresses, "--json")).stdout)["todo"]
    (said,) = [each for each in todo if "relay" in each]
    assert said.startswith(f"Send q5.toml to the operator of {one} and of {two} too")
    assert "beside federation.toml until that run has ended" in said and "SIGHUP" in said
    # no relay in the file, no word of one
    todo = json.loads(here(*renew(trained, "q6.toml", "--json")).stdout)["todo"]
    assert not [each for each in todo if "relay" in each]


def test_edges_that_were_added_are_named(here, trained, users, tmp_path):
    edges = "--edges bonn:ulm,ulm:kiel,kiel:bonn".split()
    line = "federation new --name heart --epsilon 3 --features 30 --json --output".split()
    here(*line, tmp_path / "heart.toml", *users(count=3), *edges)
    add = ["--add", f"jena,jena.example.org:7400,{users.lines['jena']}"]
    old = ["federation", "renew", tmp_path / "heart.toml", "--output"]
    said = here(*old, tmp_path / "heart-2.toml", *add).stdout
    assert "Edges added for those who join: bonn:jena, ulm:jena. --edge A:B names others." in said
    assert "Training starts from new weights; --start DIR takes the model of a run." in said
    assert not (tmp_path / "heart-2.start.safetensors").exists()
    found = json.loads(
        here(*old, tmp_path / "b.toml", *add, "--edge", "kiel:jena", "--json").stdout
    )
    assert found["edges_added"] == [] and found["edges"] == 4 and len(found["todo"]) == 4


def test_a_federation_that_has_run_is_not_replaced_nor_is_its_model(here, trained, tmp_path):
    output = "taken.toml"
    here(*renew(trained, output, "--json"))
    model = trained / "taken.start.safetensors"
    before = model.read_bytes()
    assert "--overwrite" in here(*renew(trained, output, start="run/ulm"), check=2).stderr
    assert model.read_bytes() == before
    # one that has never run may be
    here(*renew(trained, output, "--overwrite", "--json", start="run/ulm"))
    assert model.read_bytes() != before
    ledgers = trained / "run"
    here("up", trained / output, "--output", trained / "taken-run", "--ledgers", ledgers)
    before = model.read_bytes()
    shutil.copy(ledgers / "bonn.ledger", trained / "bonn.ledger")
    said = here(*renew(trained, output, "--overwrite"), check=2).stderr
    assert "this federation has run" in said and model.read_bytes() == before


BAD = [
    ("--start keys", "'keys' is not a run folder"),
    ("--start nowhere", "'nowhere', cannot be read"),
    ("--start run/bonn --remove rome", "'rome' is no member of breast-cancer"),
    ("--start run/bonn --remove bonn --remove ulm", "a federation needs at least two"),
    ("--start run/bonn --remove bonn", '"ring" does not fit 2 users'),
    ("--start run/bonn --add a,b", "--add 'a,b' must be NAME,ADDRESS,KEY"),
    ("--start run/bonn --add a,b:1,key,many", "a whole number, not 'many'"),
    ("--start run/bonn --add a,b:1,key", "users.key of user 3 (a)"),
    ("--start run/bonn --replace-key bonn", "--replace-key 'bonn' must be NAME=VALUE"),
    ("--start run/bonn --replace-key bonn=key", "--replace-key 'bonn=key': "),
    ("--start run/bonn --replace-key rome=KEY", "'rome' is no member"),
    ("--start run/bonn --records bonn=many", "a whole number, not 'many'"),
    ("--start run/bonn --records bonn=9", "users.records of 'bonn' applies only with"),
    ("--start run/bonn --edge bonnulm", "--edge 'bonnulm' must be A:B"),
    ("--start run/bonn --edge bonn:ulm", "this one is a ring; drop it"),
    ("--start run/bonn --topology moebius", "network.topology must be"),
    ("--start run/bonn --epsilon 0", "privacy.epsilon must be a positive number"),
    ("--start run/bonn --adversary colluding:7", "7 colluding users of 3"),
    ("--start run/bonn --name a/b", "name must be a name of letters"),
    ("--start run/bonn --name breast-cancer", "take another with --name"),
]


@pytest.mark.parametrize(
    ("line", "words"), BAD, ids=[line.partition("bonn ")[2] for line, _ in BAD]
)
def test_bad_input_is_one_sentence_and_leaves_nothing(here, trained, monkeypatch, line, words):
    monkeypatch.chdir(trained)
    options = [word.replace("KEY", Identity.new().line) for word in line.split()]
    new = ("federation", "renew", "federation.toml", "--output", "out.toml")
    assert words in here(*new, *options, check=2).stderr
    assert not list(trained.glob("out*"))
