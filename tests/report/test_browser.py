"""The page in a real browser: what Chromium has drawn, with nasty names that must stay text."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lightning_jd.report import page
from tests.report.test_page import NASTY, full_run

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
# Asks the browser itself for the boxes that it has drawn, and whether a name became an element.
PROBE = """<script>
  const drawn = (selector) => [...document.querySelectorAll(selector)].filter((element) => {
    const box = element.getBoundingClientRect();
    return box.width > 0 && box.height + box.width > 5;
  }).length;
  const wide = document.documentElement.scrollWidth <= window.innerWidth;
  const names = [...document.querySelectorAll("svg .name")].map((element) => element.textContent);
  document.title = JSON.stringify({
    lines: drawn("polyline.line"), cells: drawn("rect.cell"), verdicts: drawn("article.verdict"),
    scripts: document.scripts.length, fits: wide, names: names.length,
  });
</script>"""


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
@pytest.mark.parametrize("width", [1240, 600])
def test_a_browser_draws_the_page(tmp_path: Path, width: int) -> None:
    assert BROWSER is not None
    file = tmp_path / "page.html"
    html = page(full_run(), f"title {NASTY}")
    file.write_text(html.replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
    command = [
        BROWSER, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},2000",
        "--virtual-time-budget=2000", "--dump-dom", file.as_uri(),
    ]  # fmt: skip
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    title = re.search(r"<title>(\{.*?\})</title>", run.stdout)
    assert title is not None
    assert title[1] == (
        '{"lines":15,"cells":4,"verdicts":6,"scripts":1,"fits":true,"names":4}'  # one: the probe
    )
