"""`--overwrite` replaces a federation that has never run, and nothing else."""

import pytest
from ledgers import open_ledger

from decor.federation.federation import Federation
from decor.net.identity import Identity

TRIAL = "federation new --task breast-cancer --epsilon 10 --overwrite --output".split()


def test_a_federation_is_replaced_on_demand_unless_it_has_run(here, tmp_path, users):
    file = tmp_path / "heart.toml"
    line = "federation new --name heart --features 30 --overwrite"

    def new(epsilon, file=file, **check):
        return here(*line.split(), *users(), "--output", file, "--epsilon", epsilon, **check).stderr

    new(3)
    new(4)
    assert Federation.read(file).privacy.epsilon == 4
    with open_ledger(tmp_path / "bonn.ledger") as ledger:
        ledger.record(ledger.begin(bytes(32), "of another federation"), 0, b"message")
        assert "bonn.ledger' is open" in new(5, check=2)
    new(5)
    with open_ledger(tmp_path / "bonn.ledger") as ledger:
        ledger.record(ledger.begin(Federation.read(file).digest, "of this one"), 0, b"message")
    before = file.read_bytes()
    assert "has run" in new(6, check=2) and file.read_bytes() == before
    thesis = tmp_path / "thesis.toml"
    thesis.write_text("precious = true")
    assert "no federation that could be overwritten" in new(3, thesis, check=2)
    assert thesis.read_text() == "precious = true"


def test_a_trial_is_replaced_on_demand_and_other_files_stay(here, tmp_path):
    folder = tmp_path / "trial"
    here(*TRIAL, folder, "--users", 5)
    keys = {path.name: path.read_bytes() for path in (folder / "keys").iterdir()}
    (folder / "notes.txt").write_text("mine")
    (folder / "keys" / "other.key").write_text("mine")
    here(*TRIAL, folder, "--users", 4)
    federation = Federation.read(folder / "federation.toml")
    names = [member.name for member in federation.members]
    assert len(names) == 4 and (folder / "notes.txt").read_text() == "mine"
    left = {path.name for path in (folder / "keys").iterdir()}
    assert left == {"other.key", *(f"{name}.key" for name in names)}
    assert {path.stem for path in (folder / "data").iterdir()} == set(names)
    for k, name in enumerate(names):
        identity = Identity.load(folder / "keys" / f"{name}.key")
        assert federation.number_of(identity.public) == k and keys[f"{name}.key"] != identity.line


@pytest.mark.parametrize("where", ["run", "keys"])
def test_a_trial_that_runs_or_has_run_is_never_overwritten(here, tmp_path, where):
    folder = tmp_path / "trial"
    new = [*TRIAL, folder, "--users", 3]
    here(*new)
    (folder / where).mkdir(exist_ok=True)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with open_ledger(folder / where / "ulm.ledger") as ledger:
        run = ledger.begin(Federation.read(folder / "federation.toml").digest, "plan")
        assert "is open" in here(*new, check=2).stderr
        ledger.record(run, 0, b"message")
    refused = here(*new, check=2).stderr
    assert "has run" in refused and "ulm.ledger' accounts for 1 messages" in refused
    assert "remove it by hand" in refused
    assert all(path.read_bytes() == content for path, content in before.items())


def test_a_folder_without_a_trial_is_never_overwritten(here, tmp_path):
    folder = tmp_path / "mine"
    (folder / "keys").mkdir(parents=True)
    (folder / "keys" / "bonn.key").write_text("precious")
    assert "no federation that could be overwritten" in here(*TRIAL, folder, check=2).stderr
    assert (folder / "keys" / "bonn.key").read_text() == "precious"
    assert len(list(folder.rglob("*"))) == 2
