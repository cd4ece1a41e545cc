"""Errors that say what to install."""

import pytest

from decor.errors import MissingExtra, require


def test_a_library_that_is_there_is_not_missed():
    require("json", "train", "runs")


@pytest.mark.parametrize("library", ["no_such_library", "no_such_library.inside"])
def test_a_missing_library_is_named_with_the_command_that_brings_it(library):
    with pytest.raises(
        MissingExtra, match=rf"nodes need {library}: pip install '.\[all\]'"
    ) as missing:
        require(library, "all", "nodes")
    assert missing.value.name == library
