import pytest
from ledgers import close_ledgers


@pytest.fixture(autouse=True)
def ledgers_are_closed():
    """Peers of tests leave their ledgers open, and Python 3.13 warns of a database that is."""
    yield
    close_ledgers()
