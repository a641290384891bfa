"""The whole site, built as CI does: no warning, no broken link, nothing from the network; in a real Chromium no overflow, and
no violation that axe finds.

Needs MkDocs (extra `docs`), a browser and, for axe, npm or `build/axe.min.js`. Screenshots go to build/screenshots.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from browsing import axe_source, chromium, violations

ROOT = Path(__file__).parents[2]
#: One page of each main kind: prose, reference, catalogue, recommendation.
KINDS = ("index.html", "reference/methods.html", "catalogue/methods/f2ba.html", "which-method.html")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.whole,
    pytest.mark.filterwarnings("default::ResourceWarning", "default::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("mkdocs", reason="MkDocs is not installed; pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("docs") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


class Page(HTMLParser):
    """The links, the sources and the ids of one page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.sources: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids |= {value for name in ("id", "name") if (value := given.get(name))}
        if tag in ("a", "link") and given.get("href"):
            (self.links if tag == "a" else self.sources).append(str(given["href"]))
        if tag in ("script", "img", "iframe") and given.get("src"):
            self.sources.append(str(given["src"]))


def test_no_link_is_broken_and_nothing_comes_from_the_network(site):
    pages = {path.relative_to(site).as_posix(): Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 100
    broken = []
    for name, page in pages.items():
        for source in page.sources:
            if urlsplit(source).scheme in ("http", "https") or source.startswith("//"):
                broken.append(f"{name} loads {source}")
        for link in [*page.links, *page.sources]:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (site / name).parent / unquote(parts.path) if parts.path else site / name
            if not target.exists():
                broken.append(f"{name} links to {link}, which is not there")
            elif parts.fragment and target.suffix == ".html":
                key = target.resolve().relative_to(site.resolve()).as_posix()
                if unquote(parts.fragment) not in pages[key].ids and parts.fragment != "__top":
                    broken.append(f"{name} links to {link}, which has no such place")
    assert broken == []


def test_the_star_of_a_solution_is_not_taken_for_emphasis(site):
    """y*(x) twice in a paragraph, unless it is code or escaped, makes what is between them italic."""
    for path in site.rglob("*.html"):
        for text in re.findall(r"(?s)<em>(.*?)</em>", path.read_text(encoding="utf-8")):
            assert (text.count("("), text[:1] == ",") == (text.count(")"), False), f"{path.name}: {text}"


@pytest.fixture(scope="module")
def browser():
    with chromium() as one:
        yield one


def test_no_page_is_wider_than_the_screen(site, browser):
    page = browser.new_page()
    failures = []
    page.on("pageerror", lambda error: failures.append(f"{page.url}: {error}"))
    for path in sorted(site.rglob("*.html")):
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 900})
            if width == 1280:
                page.goto(path.as_uri(), wait_until="domcontentloaded")
            wide = page.evaluate("document.scrollingElement.scrollWidth")
            if wide > width:
                failures.append(f"{path.relative_to(site)} is {wide} px wide at {width} px")
    page.close()
    assert failures == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", KINDS)
def test_axe_finds_nothing(site, browser, name, scheme):
    page = browser.new_page(color_scheme=scheme, viewport={"width": 1280, "height": 900})
    page.goto((site / name).as_uri())
    page.wait_for_timeout(500)
    found = violations(page, axe_source())
    page.close()
    assert found == []


#: What authors look for, and a page that has to be among those that are found.
LOOKED_FOR = {
    "f3bsa": "catalogue/methods/f3bsa.html",
    "xi": "tutorials/mini-batches.html",
    "same sample": "reference/methods.html",
    "Table": "reference/methods.html",
    "blocks_f": "reference/methods.html",
    "blocks_g": "tutorials/finite-sum.html",
    "order": "reference/methods.html",
    "only": "reference/methods.html",
    "when": "reference/methods.html",
    "stopped": "tutorials/stop-by-tolerance.html",
    "answer": "reference/methods.html",
    "extras": "reference/methods.html",
    "constant": "reference/methods.html",
    "state": "reference/methods.html",
    "rows": "tutorials/finite-sum.html",
    "weight": "tutorials/finite-sum.html",
    "metrics": "reference/problems.html",
    "x_limit": "reference/problems.html",
    "seeded_module": "reference/problems.html",
    "schedule.phi": "reference/suite-files.html",
    "leaderboard facts": "reference/command-line.html",
}


def test_the_search_finds_offline_what_authors_look_for(site, browser):
    from playwright.sync_api import TimeoutError as PlaywrightTimeout  # the fixture skips where it is not installed

    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto((site / "index.html").as_uri())
    field, missing = page.locator("input[name=query]"), []
    for words, wanted in LOOKED_FOR.items():
        field.click()
        field.fill("")
        field.press_sequentially(words)
        try:
            page.locator(f'.md-search-result__item a[href*="{wanted}"]').first.wait_for(
                state="attached", timeout=20_000
            )
        except PlaywrightTimeout:
            missing.append((words, wanted))
    page.close()
    assert missing == []
