"""Every kind of page in a real Chromium: on a phone and on wide screens, light and dark, printed, without script, by axe."""

from __future__ import annotations

from pathlib import Path

import pytest
from browsing import STRICT, UNREADABLE, axe_source, chromium, violations
from leaderboard_data import make_results, material

from bilevelbench.leaderboard.build import build, write_site
from bilevelbench.leaderboard.collect import Material
from bilevelbench.leaderboard.links import Links
from bilevelbench.report.contents import Report
from bilevelbench.report.formats import html

ROOT = Path(__file__).parents[2]
SCREENSHOTS = ROOT / "build" / "screenshots"
ADDRESS = "https://example.org/board"
LINKS = Links("https://example.org/bilevelbench", "docs/index.html", ADDRESS)
KINDS = ("index", "tables", "experiments", "counting", "data", "use", "method/gd", "problem/bowl")

pytestmark = [
    pytest.mark.whole,
    pytest.mark.filterwarnings("default::ResourceWarning", "default::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def browser():
    with chromium() as one:
        yield one


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    return write_site(material(folder), folder / "out", links=LINKS).parent


@pytest.fixture(scope="module")
def official(tmp_path_factory):
    """The published results, as `make page` shows them."""
    folders = sorted((ROOT / "leaderboard" / "results" / "official").iterdir())
    return build(folders, tmp_path_factory.mktemp("official") / "out").parent


def opened(browser, path, width=1280, scheme="light", **options):
    """A page that asks nobody but the folder that it lies in."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    return page


def unfolded(page):
    page.eval_on_selector_all("details", "all => all.forEach(d => { d.open = true; })")
    return page


@pytest.mark.parametrize("name", [KINDS[-1], *(pytest.param(name, marks=pytest.mark.slow) for name in KINDS[:-1])])
def test_axe_finds_nothing_on_a_kind_of_page(site, browser, name):
    page = opened(browser, site / f"{name}.html")
    assert violations(unfolded(page), axe_source(), STRICT) == []
    page.close()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing_on_the_published_pages(official, browser, width, scheme):
    found = {}
    for path in _some_of_each_kind(official):
        page = opened(browser, path, width, scheme)
        found[path.name] = violations(unfolded(page), axe_source(), STRICT)
        page.close()
    assert {name: what for name, what in found.items() if what} == {}


@pytest.mark.slow
@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark"), (1920, "light")])
def test_no_words_are_cut_or_lie_on_others_on_the_published_pages(official, browser, width, scheme):
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    found = {}
    for path in sorted(official.rglob("*.html")):
        page = unfolded(opened(browser, path, width, scheme))
        found[path.name] = page.evaluate(UNREADABLE)
        page.close()
    assert {name: what for name, what in found.items() if what} == {}


@pytest.mark.parametrize(
    ("width", "names"),
    [(390, ("index", "problem/bowl")), *(pytest.param(w, KINDS, marks=pytest.mark.slow) for w in (390, 1920))],
    ids=["some", "phone", "wide"],
)
def test_no_words_are_cut_or_lie_on_others(site, browser, width, names):
    for name in names:
        page = unfolded(opened(browser, site / f"{name}.html", width))
        assert page.evaluate(UNREADABLE) == [], name
        page.close()


def test_the_measure_of_words_sees_those_that_are_cut_or_covered(browser):
    page = browser.new_page()
    page.set_content(
        '<p style="position:absolute;top:50px">under</p><p style="position:absolute;top:52px">over</p>'
        '<svg width="40" height="20" style="overflow:hidden"><text x="-20" y="15">2,000,000</text></svg>'
        '<div style="width:30px;overflow:hidden;white-space:nowrap">a long line of words</div>'
    )
    said = " ".join(page.evaluate(UNREADABLE))
    page.close()
    assert '"under" lies on "over"' in said
    assert '"2,000,000" is cut off by its drawing' in said
    assert '"a long line of words" is cut off by its box' in said


@pytest.mark.parametrize("name", ["index", "problem/bowl"])
def test_without_script_words_stand_where_drawings_would(site, browser, name):
    page = opened(browser, site / f"{name}.html", java_script_enabled=False)
    assert "by a script" in page.locator("main").inner_text()
    assert page.locator("table").first.is_visible()
    page.close()


def test_print_cuts_no_equations_and_hides_what_cannot_be_pressed(site, browser):
    page = opened(browser, site / "problem" / "bowl.html", 700)
    page.emulate_media(media="print")
    assert (
        page.locator("#results-1 thead").inner_text().startswith("method")
    )  # what sorts on a screen is a heading here
    assert not page.locator(".again-column").first.is_visible()
    cut = page.eval_on_selector_all("pre", "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).length")
    pressed = page.eval_on_selector_all(
        "button", "all => all.filter(e => e.offsetParent && !e.closest('thead')).length"
    )
    page.close()
    assert (cut, pressed) == (0, 0)


def test_a_preview_has_an_address_and_the_figure_three_kinds(site, browser):
    page = opened(browser, site / "index.html")
    assert page.locator('meta[property="og:image"]').get_attribute("content") == f"{ADDRESS}/figures/claims.png"
    page.close()
    starts = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}
    for kind, start in starts.items():
        assert (site / "figures" / f"claims.{kind}").read_bytes().startswith(start)


@pytest.mark.slow
def test_figures_take_the_colours_of_the_page_in_the_dark(browser, tmp_path):
    """A colour with a meaning is the page's: `var()` in an attribute of an inline drawing."""
    data = make_results({"gd": (3, 0, 1.0), "newton": (1, 2, 1.3)}, {"bowl": {}}, seeds=3)
    data.records[0]["families"] = {"gd": "penalty", "newton": "implicit"}
    path = tmp_path / "index.html"
    path.write_text(html.document(Report(data)), encoding="utf-8")
    colours = {}
    for scheme in ("light", "dark"):
        page = opened(browser, path, scheme=scheme)
        drawn = page.eval_on_selector_all("svg path", "all => all.map(e => getComputedStyle(e).stroke)")
        colours[scheme] = set(drawn)
        assert violations(page, axe_source(), STRICT) == []
        assert page.evaluate(UNREADABLE) == []
        page.close()
    assert "rgb(0, 114, 178)" in colours["light"] - colours["dark"]
    assert "rgb(86, 180, 233)" in colours["dark"] - colours["light"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["m" * 200, "\u202etxet tfel-ot-thgir", "שיטה", "<b>bold</b>", "a b " * 50],
    ids=["long", "turned", "hebrew", "html", "words"],
)
def test_odd_names_are_legible_and_harmless(browser, tmp_path, name):
    data = make_results({name: (3, 0, 1.0), "gd": (2, 0, 1.3)}, {"bowl": {}}, seeds=2)
    index = write_site(Material({"default": data}), tmp_path / "out")
    for path in sorted(index.parent.rglob("*.html")):
        page = unfolded(opened(browser, path, 390))
        assert page.evaluate(UNREADABLE) == [], path.name
        assert page.locator("main b, main img").count() == 0
        page.close()


def test_a_board_with_one_method_says_so_and_has_no_tabs(browser, tmp_path):
    index = write_site(
        Material({"default": make_results({"gd": (2, 0, 1.3)}, {"bowl": {}}, seeds=2)}), tmp_path / "out"
    )
    page = opened(browser, index)
    assert "gd alone was run here" in page.locator("main").inner_text()
    assert page.locator(".tabs").count() == 0
    page.close()


def _some_of_each_kind(site):
    """The pages at the top, and a few of the methods' and the problems'."""
    top = sorted(site.glob("*.html"))
    return [*top, *sorted(site.glob("method/*.html"))[:3], *sorted(site.glob("problem/*.html"))[:3]]
