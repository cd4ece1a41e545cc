"""Takes the picture of the planner for the documentation: `decor ui` itself, in a browser without a
window.

python docs/make_planner.py        # needs selenium, chromium and chromedriver
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

PICTURE = "planner.png"
FIGURES = Path(__file__).parent / "figures"
SIZE, FLAGS = (
    (1440, 1000),
    "--headless=new --no-sandbox --disable-gpu --hide-scrollbars --disable-dev-shm-usage",
)

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


def taken(driver) -> bytes:
    """The page with a random graph that is being edited by hand."""
    driver.execute_script(CHOOSE)
    time.sleep(1.5)
    driver.execute_script("document.getElementById('edit').click()")
    time.sleep(1.5)
    return driver.get_screenshot_as_png()


def main() -> None:
    from PIL import Image
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    command = [sys.executable, "-m", "decor", "ui", "--json", "--no-browser"]
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome")
    for flag in FLAGS.split():
        options.add_argument(flag)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as planner:
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            size = {"width": SIZE[0], "height": SIZE[1], "deviceScaleFactor": 1.25, "mobile": False}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            driver.get(json.loads(planner.stdout.readline())["url"])
            time.sleep(1.5)
            picture = Image.open(io.BytesIO(taken(driver))).convert("RGB")
        finally:
            driver.quit()
            planner.terminate()
    picture.quantize(256, dither=Image.Dither.NONE).save(FIGURES / PICTURE, optimize=True)


if __name__ == "__main__":
    main()
