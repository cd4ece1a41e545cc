"""`decor release` copies what may be published of a private run."""

import decor


def test_a_private_run_is_released_to_a_new_folder_and_a_simulation_is_not(here, ask, tmp_path):
    line = "train --task breast-cancer --users 4 --epsilon 10 --steps 4 --learning-rate 0.1"
    here(*line.split(), *"--seed secret --output private".split())
    answer = ask("release private published")
    files = sorted(path.name for path in (tmp_path / "published").iterdir())
    assert answer["output"] == "published" and answer["files"] == files
    assert answer["statement"] == str(decor.Run.load(tmp_path / "private").guarantee)
    assert "wrote again: " in here("release", "private", "again").stdout
    here("release", "private", "published", check=2)
    here(*line.split(), "--output", "simulation")
    here("release", "simulation", "models", check=2)
    assert not (tmp_path / "models").exists()
