"""`decor relay`: its options; what it does is tested in tests/federation/test_relayed.py."""

import pytest


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["missing.toml", "--listen", ":7500"], "cannot be read"),
        (["heart.toml", "--listen", "7500"], "is not an address"),
        (["heart.toml", "--listen", "192.0.2.1:7500"], "cannot listen at 192.0.2.1:7500"),
        (["heart.toml", "--listen", ":7500", "--bandwidth", "0"], "--bandwidth must be positive"),
        (["heart.toml", "--listen", ":7500", "--address", "here"], "is not an address"),
        (["heart.toml", "--listen", ":7500", "--metrics", "0.0.0.0"], "is not an address"),
        (["heart.toml", "--listen", ":7500", "--log", "missing/log"], "cannot be written"),
    ],
)
def test_wrong_input_is_refused_in_a_sentence(here, users, words, said):
    here(
        *"federation new --name heart --epsilon 3 --features 30 --output heart.toml".split(),
        *users(),
    )
    assert said in here("relay", *words, check=2).stderr


def test_the_address_to_listen_on_has_to_be_given(here):
    assert "--listen" in here("relay", "heart.toml", check=2).stderr
