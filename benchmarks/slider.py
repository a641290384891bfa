"""How long a tick of the board's slider takes in a browser, and what its first page weighs compressed.

python benchmarks/slider.py SITE      (needs chromium and playwright)
"""

from __future__ import annotations

import gzip
import json
import re
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

TICKS = 40
#: One tick of the slider per frame, as a pointer moves it.
_MOVE = """async (count) => {
  const slider = document.getElementById("weight");
  for (let n = 0; n < count; n++) {
    slider.value = 1 + 0.2 * n;
    slider.dispatchEvent(new Event("input"));
    await new Promise(requestAnimationFrame);
  }
}"""


def compressed(site: Path) -> int:
    """Bytes of the first page and of the scripts and styles that it loads, each by gzip."""
    page = (site / "index.html").read_text(encoding="utf-8")
    beside = re.findall(r'<script src="([^"]+)"', page) + re.findall(r'<link rel="stylesheet" href="([^"]+)"', page)
    return sum(len(gzip.compress((site / name).read_bytes())) for name in ("index.html", *beside))


def tick(site: Path) -> float:
    """Milliseconds of processor time that the page's thread spends on a tick, with layout and what is drawn."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        page = browser.new_page()
        page.goto((site / "index.html").resolve().as_uri())
        devtools = page.context.new_cdp_session(page)
        devtools.send("Performance.enable", {"timeDomain": "threadTicks"})

        def spent() -> float:
            metrics = devtools.send("Performance.getMetrics")["metrics"]
            return next(float(one["value"]) for one in metrics if one["name"] == "TaskDuration")

        page.evaluate(_MOVE, TICKS)
        began = spent()
        page.evaluate(_MOVE, TICKS)
        found = 1000 * (spent() - began) / TICKS
        browser.close()
    return found


def main() -> None:
    site = Path(sys.argv[1])
    print(json.dumps({"first_page_bytes": compressed(site), "tick_ms": round(tick(site), 1)}))


if __name__ == "__main__":
    main()
