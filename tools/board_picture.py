"""The picture of the board for README.md and the first page of the site: `python tools/board_picture.py build/site`.

The board is built first, by `make page`; the browser is the one that the tests use.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "pictures" / "board.png"


def main(site: Path) -> None:
    path = os.environ.get("BILEVELBENCH_CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 1240, "height": 1000})
        page.goto((site / "index.html").resolve().as_uri())
        ranking = page.locator(".board.current table.ranking")
        ranking.wait_for()
        top = page.locator("#controls").bounding_box()
        bottom = ranking.locator("tbody tr").nth(8).bounding_box()
        assert top is not None
        assert bottom is not None
        # The table scrolls: the picture ends with the last column that is seen whole.
        right = ranking.evaluate(
            "t => { const edge = t.parentElement.getBoundingClientRect().right;"
            " return Math.max(...[...t.tHead.rows[0].cells].map(c => c.getBoundingClientRect().right).filter(r => r <= edge)) }"
        )
        page.screenshot(
            path=PICTURE,
            full_page=True,
            clip={
                "x": 0,
                "y": top["y"] - 12,
                "width": right + 1,
                "height": bottom["y"] + bottom["height"] - top["y"] + 12,
            },
        )
        browser.close()
    print(PICTURE)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
