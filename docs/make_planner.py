"""Takes the pictures of `decor ui` for the documentation, in a browser without a window.

python docs/make_planner.py        # needs selenium, chromium and chromedriver
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

FIGURES = Path(__file__).parent / "figures"
WIDTH = 1440
FLAGS = "--headless=new --no-sandbox --disable-gpu --hide-scrollbars --disable-dev-shm-usage"
DECOR = [sys.executable, "-m", "decor"]

CHOOSE = """
const set = (id, value, kind) => {
  const field = document.getElementById(id);
  field.value = value;
  for (const each of [kind, 'change']) field.dispatchEvent(new Event(each));
};
set('topology', 'erdos-renyi', 'change');
set('users', 20, 'input');
set('probability', 0.24, 'input');
set('graph_seed', 9, 'input');
set('epsilon', 5, 'input');"""

USERS, KILLED = 8, "kiel"
NEW = f"""federation new --task breast-cancer --name tumour --users {USERS} --epsilon 10
--steps 800 --topology random-regular --degree 3 --graph-seed 4 --timeout 3 --output trial"""


@contextmanager
def page(height: int, *options: str) -> Iterator:
    """A browser that shows what `decor ui` shows with these options."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    command = [*DECOR, "ui", "--json", "--no-browser", *options]
    chosen = webdriver.ChromeOptions()
    chosen.binary_location = shutil.which("chromium") or shutil.which("google-chrome")
    for flag in FLAGS.split():
        chosen.add_argument(flag)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as planner:
        driver = webdriver.Chrome(options=chosen, service=Service(shutil.which("chromedriver")))
        try:
            size = {"width": WIDTH, "height": height, "deviceScaleFactor": 1.25, "mobile": False}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            driver.get(json.loads(planner.stdout.readline())["url"])
            time.sleep(1.5)
            yield driver
        finally:
            driver.quit()
            planner.terminate()


def save(driver, name: str) -> None:
    from PIL import Image

    picture = Image.open(io.BytesIO(driver.get_screenshot_as_png())).convert("RGB")
    picture.quantize(256, dither=Image.Dither.NONE).save(FIGURES / name, optimize=True)


def take_planner() -> None:
    """The page with a random graph that is being edited by hand."""
    with page(1000) as driver:
        driver.execute_script(CHOOSE)
        time.sleep(1.5)
        driver.execute_script("document.getElementById('edit').click()")
        time.sleep(1.5)
        save(driver, "planner.png")


def wait_for(driver, condition: str) -> None:
    while not driver.execute_script(f"return {condition}"):
        time.sleep(0.2)


def take_federation(folder: Path) -> None:
    """A federation of eight nodes, one of which has been killed."""
    subprocess.run([*DECOR, *NEW.split()], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    names = sorted(path.stem for path in (folder / "trial" / "keys").glob("*.key"))
    with ExitStack() as stack:
        nodes = {}
        for name in names:
            own = ["--identity", f"keys/{name}.key"]
            ledger = [*DECOR, "ledger", "new", f"{name}.ledger", *own]
            quiet = {"cwd": folder / "trial", "stdout": subprocess.DEVNULL}
            subprocess.run(ledger, check=True, **quiet)
            given = ["federation.toml", *own, "--ledger", f"{name}.ledger", "--log", f"{name}.log"]
            node = [*DECOR, "node", *given, "--data", f"data/{name}.npz"]
            nodes[name] = stack.enter_context(subprocess.Popen(node, **quiet))
            stack.callback(nodes[name].terminate)
        with page(1500, "--watch", str(folder / "trial")) as driver:
            number = "Number(document.getElementById('{}')?.textContent.replace(' ×', ''))"
            wait_for(driver, f"{number.format('live-step')} >= 300")
            nodes[KILLED].kill()
            wait_for(driver, f"{number.format('live-noise')} > 1")
            wait_for(driver, f"{number.format('live-working')} === {USERS - 1}")
            chosen = f"document.querySelector('[data-user={KILLED}]')"
            driver.execute_script(f"{chosen}.dispatchEvent(new Event('click'))")
            # not the name of a folder that is gone in a moment
            source = "document.getElementById('watch-source')"
            driver.execute_script(f"{source}.textContent = '/var/lib/decor/trial'")
            save(driver, "federation.png")


def main() -> None:
    take_planner()
    with tempfile.TemporaryDirectory() as folder:
        take_federation(Path(folder))


if __name__ == "__main__":
    main()
