"""A real Chromium for tests, axe inside of it, and what to measure on a page; without a browser tests are skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

AXE = Path(__file__).parents[1] / "build" / "axe.min.js"
AXE_PACKAGE = "axe-core@4.14.0"


def missing(reason: str) -> None:
    if os.environ.get("BILEVELBENCH_REQUIRE_BROWSER") == "1":
        pytest.fail(f"the tests in a browser have to run (BILEVELBENCH_REQUIRE_BROWSER=1), but {reason}")
    pytest.skip(f"not run: {reason}")


@contextmanager
def chromium(reachable: str = "") -> Iterator[Any]:
    """A browser that finds no host but the one that is to be `reachable`."""
    path = os.environ.get("BILEVELBENCH_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        missing("there is no chromium; install Debian's: apt-get install chromium")
    sync_api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed; pip install -e '.[test]'"
    )
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking"]
    arguments.append("--host-resolver-rules=MAP * ~NOTFOUND" + (f", EXCLUDE {reachable}" if reachable else ""))
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


def axe_source() -> str:
    """The script of axe; npm fetches it once."""
    if not AXE.is_file():
        npm = shutil.which("npm")
        if npm is None:
            missing(f"there is no npm to fetch axe with; put axe.min.js into {AXE.parent}")
        AXE.parent.mkdir(exist_ok=True)
        done = subprocess.run([npm, "pack", AXE_PACKAGE], cwd=AXE.parent, capture_output=True, text=True, timeout=300)
        if done.returncode:
            missing(f"npm could not fetch axe: {done.stderr[-300:]}")
        with tarfile.open(AXE.parent / done.stdout.strip().splitlines()[-1]) as archive:
            member = archive.extractfile("package/axe.min.js")
            assert member is not None
            AXE.write_bytes(member.read())
    return AXE.read_text(encoding="utf-8")


#: The rules of WCAG 2.2 AA, of which axe leaves out the newest unless it is asked, and those of good practice.
STRICT = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")


def violations(page: Any, axe: str, tags: Sequence[str] = ()) -> list[Any]:
    """What axe finds on a page, by the rules with these tags, or else by those that it runs by itself."""
    page.evaluate(axe)
    found: list[Any] = page.evaluate(
        "tags => axe.run(tags.length ? { runOnly: tags } : {})"
        ".then(done => done.violations.map(v => [v.id, v.nodes.map(n => n.html.slice(0, 200))]))",
        list(tags),
    )
    return found


#: Words that lie on other words, or are cut off by the drawing or the box that they are in; as sentences.
UNREADABLE = """() => {
  const out = [], boxes = [];
  const say = (node, what) => out.push(JSON.stringify(node.textContent.trim().slice(0, 60)) + what);
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement;
    const unseen = parent.closest('.visually-hidden, noscript, option, select, .skip');
    if (!node.textContent.trim() || !parent.checkVisibility({ visibilityProperty: true }) || unseen) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const svg = parent.closest('svg'), clips = svg && getComputedStyle(svg).overflow !== 'visible';
    for (const r of range.getClientRects()) {
      if (r.width < 1 || r.height < 1) continue;
      const beyond = (b, up) => r.left < b.left - 1 || r.right > b.right + 1 || r.top < b.top - up || r.bottom > b.bottom + up;
      if (clips && beyond(svg.getBoundingClientRect(), 2)) say(node, ' is cut off by its drawing');
      let left = r.left, right = r.right, top = r.top, bottom = r.bottom;
      for (let e = parent; e; e = e.parentElement) {
        const flow = getComputedStyle(e).overflowX, b = e.getBoundingClientRect();
        if (flow === 'hidden' && !(e instanceof SVGElement) && beyond(b, 99)) say(node, ' is cut off by its box');
        if (flow === 'visible') continue;
        left = Math.max(left, b.left); right = Math.min(right, b.right);
        top = Math.max(top, b.top); bottom = Math.min(bottom, b.bottom);
      }
      const inset = (bottom - top) * 0.2; // letters leave some of a line's height empty
      if (right - left > 2 && bottom - top > 2) boxes.push({ node, left, right, top: top + inset, bottom: bottom - inset });
    }
  }
  boxes.sort((a, b) => a.top - b.top);
  boxes.forEach((a, i) => {
    for (let j = i + 1; j < boxes.length && boxes[j].top < a.bottom; j++) {
      const b = boxes[j], across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      if (across > 2 && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2)
        say(a.node, ' lies on ' + JSON.stringify(b.node.textContent.trim().slice(0, 60)));
    }
  });
  const wide = document.scrollingElement.scrollWidth;
  if (wide > window.innerWidth) out.push('the page is ' + wide + ' px wide at ' + window.innerWidth);
  return out;
}"""
