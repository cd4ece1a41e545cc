import pytest

from .client import running


@pytest.fixture(scope="session")
def planner():
    with running() as server:
        yield server


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    import browser

    with browser.started(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def show(driver, planner):
    """Opens the planner with an empty session; afterwards the browser's console must be empty."""

    import browser

    from .actions import wait_until_settled

    def open_page(server=planner, width=1280, dark=False):
        browser.shape(driver, width, dark)
        driver.execute_script("if (window.origin.startsWith('http')) sessionStorage.clear()")
        driver.get("about:blank")
        driver.get(server.url)
        wait_until_settled(driver)
        return driver

    driver.get_log("browser")
    yield open_page
    assert browser.complaints(driver) == []
