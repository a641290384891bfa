"""The site in a real Chromium, opened from a file path.

Without a browser these tests are skipped with the reason; BILEVELBENCH_REQUIRE_BROWSER=1 makes them fail instead.
Screenshots go to build/screenshots.
"""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import numpy as np
import pandas as pd
import pytest
from browsing import chromium
from helpers import DIVERGES, HEALTHY, cli, guide_command, uncertified
from leaderboard_data import BREAK, IMAGE, METHODS, SCRIPT, make_results

from bilevelbench.leaderboard.build import write_site
from bilevelbench.leaderboard.collect import Material
from bilevelbench.leaderboard.serve import server
from bilevelbench.leaderboard.settings import settings_of_trials
from bilevelbench.report.analysis.ranking import board, by_problem, costs
from bilevelbench.report.analysis.summary import TARGETS, titled
from bilevelbench.report.text import number, printable
from bilevelbench.results.schema import Results
from bilevelbench.results.tables import load_results
from bilevelbench.untrusted import slug

SCREENSHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"

pytestmark = [
    pytest.mark.whole,
    pytest.mark.filterwarnings("default::ResourceWarning", "default::DeprecationWarning"),
]


@pytest.fixture(scope="module")
def browser():
    with chromium("127.0.0.1") as one:  # one of the sites is served
        yield one


@pytest.fixture(scope="module")
def guide(tmp_path_factory):
    """The two trials on the problem of the guide."""
    folder = tmp_path_factory.mktemp("guide")
    assert cli(*guide_command(folder))[0] == 0
    return load_results(folder / "out")


class Watched:
    """Pages of one context, with everything that they asked for and complained about."""

    def __init__(self, context):
        self.context, self.requests, self.complaints = context, [], []
        context.on("request", lambda request: self.requests.append(request.url))
        context.on("console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None)
        context.on("weberror", lambda e: self.complaints.append(str(e.error)))
        context.on("dialog", lambda d: (self.complaints.append(f"dialog {d.message}"), d.dismiss()))
        context.on("requestfailed", lambda r: self.complaints.append(f"failed {r.url}"))

    def open(self, url):
        page = self.context.new_page()
        page.goto(url)
        return page

    def check(self, root):
        assert self.complaints == []
        assert self.requests
        assert [url for url in self.requests if not url.startswith((root, "data:,"))] == []


@pytest.fixture
def watch(browser, site):
    opened = []

    def start(width=1280, root=None, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        context.set_default_timeout(60_000)  # a busy machine
        watched = Watched(context)
        opened.append((watched, root or site.as_uri()))
        return watched

    yield start
    for watched, root in opened:
        watched.context.close()
        watched.check(root)  # on every page of every test


def rows(page, key="default-deterministic"):
    """(method, rank, cost text) of the rows that can be seen, from the top."""
    return page.eval_on_selector_all(
        f"#ranking-{key} tbody tr",
        "rows => rows.filter(r => r.offsetParent !== null).map(r => [r.cells[1].textContent.trim(), "
        "Number(r.cells[0].querySelector('.n').textContent), r.querySelector('.relative').textContent.trim()])",
    )


def follow(page, link):
    """Click, and wait until the page behind the link has run its scripts; a click alone returns before that."""
    with page.expect_navigation():
        link.click()


def expected(data, weight, mode="default", setting="deterministic"):
    """The ranking as the statistics have it, from the results and not from the site."""
    return board(costs_on(data, mode, setting), weight)


def costs_on(data, mode="default", setting="deterministic"):
    results = data.results[mode]
    found = settings_of_trials(results, data.facts)
    return costs(results.only(found.index[found == setting]), TARGETS)


def set_weight(page, weight):
    page.eval_on_selector(
        "#weight", "(e, w) => { e.value = w; e.dispatchEvent(new Event('input')); e.dispatchEvent(new Event('change')); }",
        str(weight),
    )  # fmt: skip


def test_the_tables_are_there_even_without_scripts(watch, site, everything):
    page = watch(java_script_enabled=False).open((site / "index.html").as_uri())
    shown = page.locator("#ranking-default-deterministic tbody tr")
    assert shown.count() == len(METHODS)
    want = list(expected(everything[0], 1.0)["method"])
    assert [cell.strip() for cell in shown.locator("th").all_text_contents()] == want
    assert page.locator(".board").count() == 3
    assert page.locator(".board:visible").count() == 3
    assert not page.locator("#controls").is_visible()


def test_the_slider_ranks_as_the_statistics_do(watch, site, everything):
    page = watch().open((site / "index.html").as_uri())
    orders = []
    for weight in (1, 0.5, 2, 3.37, 10):
        set_weight(page, weight)
        table = expected(everything[0], weight)
        seen = rows(page)
        assert {m: r for m, r, _ in seen} == dict(zip(table["method"], table["rank"], strict=True))
        assert [r for _, r, _ in seen] == sorted(table["rank"])
        for method, _, cost in seen:
            value = float(table.loc[table["method"] == method, "relative"].iloc[0])
            assert cost == ("not reached" if np.isinf(value) else f"{value:.1f}×" if value < 100 else cost)
        orders.append([m for m, _, _ in seen])
        assert page.locator("#weight-value").text_content() == f"{weight:g}"
    assert orders[1] != orders[-1]  # the price matters
    assert "w=10" in page.url


def test_the_slider_by_keyboard_and_its_marks(watch, site, everything):
    page = watch().open((site / "index.html").as_uri())
    page.focus("#weight")
    page.keyboard.press("End")
    table = expected(everything[0], 10)
    assert {m: r for m, r, _ in rows(page)} == dict(zip(table["method"], table["rank"], strict=True))
    page.get_by_role("button", name="measured: 2.0").click()
    assert page.locator("#weight").input_value() == "2"
    assert "w=2" in page.url


def test_settings_and_modes_show_their_board(watch, site, everything):
    page = watch().open((site / "index.html").as_uri())
    assert page.locator(".board:visible").count() == 1
    page.get_by_role("button", name="fully stochastic").click()
    assert page.locator(".board:visible").get_attribute("id") == "board-default-full"
    table = expected(everything[0], 1, setting="full")
    assert {m: r for m, r, _ in rows(page, "default-full")} == dict(zip(table["method"], table["rank"], strict=True))
    page.get_by_role("button", name="tuned", exact=True).click()
    assert page.locator(".board:visible").get_attribute("id") == "board-tuned-deterministic"
    assert page.get_by_role("button", name="tuned", exact=True).get_attribute("aria-pressed") == "true"
    assert len(rows(page, "tuned-deterministic")) == 3


def heat(page, key="default-deterministic"):
    """{method: [number below each problem]} of the rows that can be seen; None where it is blank."""
    return page.evaluate(
        "key => Object.fromEntries(Array.from(document.querySelectorAll('#ranking-' + key + ' tbody tr')).filter(r => "
        "r.offsetParent !== null).map(r => [r.cells[1].textContent.trim(), Array.from(r.querySelectorAll('td[class^=h]')).map("
        "c => c.className === 'h' ? null : c.textContent)]))",
        key,
    )


def test_the_heat_map_follows_the_slider(watch, site, everything):
    page = watch().open((site / "index.html").as_uri())
    seen = []
    for weight in (1, 10):
        set_weight(page, weight)
        page.wait_for_timeout(400)  # cells are written when the slider rests
        want = by_problem(costs_on(everything[0]), weight)
        found = heat(page)
        for method in want.index:
            numbers = [None if np.isinf(v) else f"{v:.1f}" if v < 10 else number(v) for v in want.loc[method]]
            assert found[method] == numbers
        seen.append(found)
    assert seen[0] != seen[1]


def test_a_cell_leads_to_its_curve(watch, site):
    page = watch().open((site / "index.html").as_uri())
    for name in ("newton", printable(BREAK)):
        row = page.locator(
            "#ranking-default-deterministic tbody tr", has=page.get_by_role("link", name=name, exact=True)
        )
        link = row.locator("td[class^=h] a").first
        assert "expected running time" in link.get_attribute("title")
        follow(page, link)
        checked = page.locator("#method-list label", has=page.locator("input:checked"))
        assert [text.strip() for text in checked.all_text_contents()] == [name]
        page.go_back()


def test_methods_that_coincide_are_one_row(watch, tmp_path):
    one = make_results({"gd": (3, 0, 1.0), "newton": (1, 2, 1.3)}, {"p": {}, "q": {}}, seeds=2)
    other = one.runs.assign(trial_id="x" + one.runs["trial_id"], label=one.runs["label"].replace({"gd": "gd again"}))
    twins = other[other["label"] == "gd again"]
    curve = one.curve.assign(trial_id="x" + one.curve["trial_id"])
    both = Results(
        pd.concat([one.runs, twins], ignore_index=True),
        pd.concat([one.curve, curve[curve["trial_id"].isin(twins["trial_id"])]], ignore_index=True),
        [],
    )
    index = write_site(Material({"default": both}), tmp_path / "out")
    page = watch(root=tmp_path.as_uri()).open(index.as_uri())
    assert {m: r for m, r, _ in rows(page)}.keys() == {"gd = gd again here", "newton"}
    assert sorted(r for _, r, _ in rows(page)) == [1, 2]
    assert "gd = gd again here: their curves coincide on every problem." in page.locator(".board").text_content()
    assert "12 trials, 8 distinct curves." in page.locator("#ranking-default-deterministic caption").text_content()
    again = page.locator("#ranking-default-deterministic tbody tr", has_text="again")
    follow(page, again.locator("td[class^=h] a").first)
    assert page.locator("#method-list input:checked").count() == 2


def test_choosing_an_oracle_ranks_among_its_methods(watch, site, everything):
    page = watch().open((site / "index.html").as_uri())
    before = {m: r for m, r, _ in rows(page)}
    page.locator("#oracles button", has_text="HVP").click()
    after = {m: r for m, r, _ in rows(page)}
    gradient = {printable(m) for m, (_, second, _) in METHODS.items() if second == 0}
    table = costs_on(everything[0])
    want = board(table[table["method"].isin(gradient)]).set_index("method")
    assert after == want["rank"].to_dict()
    assert after != {m: before[m] for m in gradient}
    assert {m: c for m, _, c in rows(page)} == {
        m: "not reached" if np.isinf(v) else f"{v:.1f}×" for m, v in want["relative"].items()
    }
    said = page.locator("#said").text_content()
    assert said.endswith(f"first is {want.index[0]}, 1st of {len(gradient)} gradient-only")
    assert (
        f"among these {len(gradient)} methods" in page.locator("#ranking-default-deterministic caption").text_content()
    )
    page.locator("#oracles button", has_text="gradient").click()
    assert rows(page) == []
    assert page.locator(".none-left:visible").count() == 1
    page.locator("#oracles button", has_text="HVP").click()
    assert set(after) & {m for m, _, _ in rows(page)} == set()
    assert "oracle=HVP" in page.url


def test_a_link_brings_the_state_back(watch, site):
    watched = watch()
    page = watched.open((site / "index.html").as_uri())
    set_weight(page, 5)
    page.locator("#oracles button", has_text="HVP").click()
    page.locator("#ranking-default-deterministic thead button", has_text="reached").click()
    other = watched.open(page.url)
    assert rows(other) == rows(page)
    assert other.locator("#weight").input_value() == "5"
    assert other.locator("#ranking-default-deterministic th[aria-sort=descending]").text_content() == "reached"


def test_a_command_is_chosen_by_its_button(watch, site):
    page = watch().open((site / "method" / "gd.html").as_uri())
    row = page.locator("#results tbody tr").nth(1)
    row.locator("button", has_text="copy").click()
    chosen = page.evaluate("getSelection().toString()")
    assert chosen == row.locator("code.again").text_content()
    assert chosen.startswith("bilevelbench reproduce t0")


def test_headers_sort(watch, site):
    page = watch().open((site / "index.html").as_uri())

    def column(n):
        return page.eval_on_selector_all(
            "#ranking-default-deterministic tbody tr",
            f"rows => rows.map(r => r.cells[{n}].dataset.v ?? r.cells[{n}].textContent.trim())",
        )

    reached = page.locator("#ranking-default-deterministic thead button", has_text="reached")
    reached.click()  # the best first
    assert [float(v) for v in column(3)] == sorted((float(v) for v in column(3)), reverse=True)
    reached.focus()
    page.keyboard.press("Enter")
    assert [float(v) for v in column(3)] == sorted(float(v) for v in column(3))
    head = page.locator("#ranking-default-deterministic thead th", has_text="reached")
    assert head.get_attribute("aria-sort") == "ascending"
    page.locator("#ranking-default-deterministic thead button", has_text="bowl").click()
    below = [float(v) for v in column(4)]
    assert below == sorted(below)
    assert below[0] == 1
    page.locator("#ranking-default-deterministic thead button", has_text="method").click()
    assert column(1) == sorted(column(1))
    page.locator("#ranking-default-deterministic thead button", has_text="cost / best").click()
    costs_seen = [float(v) for v in column(2)]  # "Infinity" is a float, too
    assert costs_seen == sorted(costs_seen)


def test_html_in_names_messages_and_parameters_is_text(watch, site):
    watched = watch()
    page = watched.open((site / "index.html").as_uri())
    names = [m for m, _, _ in rows(page)]
    for nasty in (SCRIPT, IMAGE, BREAK):
        assert printable(nasty) in names
    for name in (SCRIPT, IMAGE, BREAK, "lost", "gd"):
        page = watched.open((site / "method" / f"{slug(printable(name))}.html").as_uri())
        assert page.locator("h1").text_content() == printable(name)
        assert page.locator("img").count() == 0
    text = watched.open((site / "method" / "lost.html").as_uri()).locator("body").text_content()
    assert SCRIPT in text
    for title in site.glob("problem/*.html"):
        page = watched.open(title.as_uri())
        page.locator("#all").click()
        labels = [text.strip() for text in page.locator("#method-list label").all_text_contents()]
        assert printable(SCRIPT) in labels
        assert page.locator("img").count() == 0
        page.locator("#chart svg").focus()
        page.keyboard.press("ArrowRight")
        assert printable(SCRIPT) in page.locator("#readout").text_content()


def test_curves_are_the_medians_of_the_trials(watch, site, everything):
    page = watch().open((site / "problem" / "bowl.html").as_uri())
    runs = titled(everything[0].results["default"].runs)
    ids = runs.loc[(runs["title"] == "bowl") & (runs["method"] == "newton"), "trial_id"]
    curve = everything[0].results["default"].curve
    curves = [curve[curve["trial_id"] == i] for i in ids]
    for axis, weight in (("step", 1), ("weighted", 3.5)):
        seen = page.evaluate(
            "([axis, w]) => { const m = BILEVELBENCH.curves.methods.find(m => m.name === 'newton');"
            " return BILEVELBENCH.summarise(m.trials, axis, 'grad_phi', w); }",
            [axis, weight],
        )
        x = curves[0]["step"] if axis == "step" else curves[0]["first_order"] + weight * curves[0]["second_order"]
        values = np.vstack([c["grad_phi"] for c in curves])  # the same steps in every trial
        assert [p[0] for p in seen] == pytest.approx(list(x), rel=1e-5)
        assert [p[1] for p in seen] == pytest.approx(list(np.median(values, 0)), rel=1e-4)
        assert [p[2] for p in seen] == pytest.approx(list(np.quantile(values, 0.25, axis=0)), rel=1e-4)
        assert [p[3] for p in seen] == pytest.approx(list(np.quantile(values, 0.75, axis=0)), rel=1e-4)
    # a failed trial is infinite after its end
    fake = (
        "BILEVELBENCH.summarise([{failed: true, timed: true, x: {step: [1, 2]}, y: {v: [5, 4]}},"
        " {failed: false, timed: true, x: {step: [1, 2, 3]}, y: {v: [5, 3, 2]}},"
        " {failed: false, timed: true, x: {step: [1, 2]}, y: {v: [5, 1]}}], 'step', 'v', 1)"
    )
    assert [p[:2] for p in page.evaluate(fake)] == [[1, 5], [2, 3], [3, 2]]


def test_the_weighted_axis_counts_samples(watch, tmp_path):
    """Calls are one a step; a step of ten samples of which four are products costs 6 + 4 w."""
    data = make_results({"noisy": (1, 1, 1.0)}, {"p": {"sigma_g": 1.0}}, seeds=1, points=4)
    step = data.curve["step"].to_numpy()
    data.curve["cost"], data.curve["second_order_samples"] = 10.0 * step, 4.0 * step
    index = write_site(Material({"default": data}), tmp_path / "site")
    (file,) = (index.parent / "problem").glob("*.html")
    page = watch(root=tmp_path.as_uri()).open(file.as_uri())
    seen = page.evaluate("BILEVELBENCH.summarise(BILEVELBENCH.curves.methods[0].trials, 'weighted', 'grad_phi', 3)")
    assert [p[0] for p in seen] == pytest.approx(list((6 + 3 * 4) * step))


@pytest.mark.parametrize("bounded", [False, True])
@pytest.mark.quick_cases(1)
def test_a_run_that_diverged_stands_below_a_healthy_one(watch, guide, tmp_path, bounded):
    results = guide if bounded else uncertified(guide)
    index = write_site(Material({"default": results}), tmp_path / "site")
    watched = watch(root=tmp_path.as_uri())
    page = watched.open(index.as_uri())
    for weight in (1, 4):
        set_weight(page, weight)
        assert [method for method, *_ in rows(page)] == [HEALTHY, DIVERGES]
        assert [rank for _, rank, _ in rows(page)] == ([1, 2] if bounded else [1.5, 1.5])
    assert f"first is {HEALTHY}" in page.locator("#said").text_content()
    sparks = page.locator("#ranking-default-deterministic svg.spark")
    assert [s.get_attribute("aria-label") for s in sparks.all()][1] == "gradient norm does not fall"
    assert "1 failed and reached nothing" in page.locator(".lead").text_content()
    problem = watched.open((index.parent / "problem" / "ridge_toy.html").as_uri())
    assert problem.locator("#results-1 tbody th").all_text_contents() == [HEALTHY, DIVERGES]
    assert ("not certified" in problem.locator("#results-1").text_content()) != bounded
    assert "|x| > 1e+06, that is 1e+06 (1 + |x0|), at step 1" in problem.locator("#failures-table").text_content()
    chosen = problem.eval_on_selector_all("#method-list label", "l => l.map(e => e.textContent.trim())")
    assert set(chosen) == {HEALTHY, DIVERGES}


def test_curves_of_several_boards_are_told_apart(watch, tmp_path):
    results = make_results({"gd": (3, 0, 1.0), "newton": (1, 2, 1.3)}, {"bowl": {}}, seeds=2)
    index = write_site(Material({"default": results, "tuned": results}), tmp_path / "out")
    page = watch(root=tmp_path.as_uri()).open((index.parent / "problem" / "bowl.html").as_uri())
    groups = page.get_by_role("group", name="out of the box"), page.get_by_role("group", name="tuned")
    for group in groups:
        assert [text.strip() for text in group.locator("label").all_text_contents()] == ["gd", "newton"]
    page.locator("#none").click()
    for group in groups:
        group.locator("label", has_text="newton").locator("input").check()
    page.locator("#chart svg").focus()
    page.keyboard.press("ArrowRight")
    said = page.locator("#readout").text_content()
    assert "newton (tuned)" in said
    assert said.count("newton") == 2


def test_the_curves_obey_their_controls(watch, site):
    watched = watch()
    page = watched.open((site / "problem" / "bowl.html").as_uri())

    def drawn():
        return page.eval_on_selector_all("#chart path.line", "paths => paths.map(p => p.getAttribute('d'))")

    def labels():
        return page.locator("#chart svg text").all_text_contents()

    first = drawn()
    assert len(first) == page.locator("#method-list input:checked").count() > 0
    assert "oracle calls (samples)" in labels()
    page.select_option("#x-axis", "weighted")
    assert "weighted calls (samples)" in labels()
    assert page.locator("#w").is_visible()
    page.fill("#w", "4")
    assert drawn() != first
    page.uncheck("#y-log")
    page.select_option("#y-axis", "g_y")
    assert "norm of the lower gradient, |∇g|" in labels()
    page.locator("#none").click()
    assert drawn() == []
    assert "Choose at least one method" in page.locator("#chart").text_content()
    page.locator("#method-list label", has_text="newton").first.locator("input").check()
    assert len(drawn()) == 1
    page.locator("#chart svg").hover()
    assert "newton" in page.locator("#readout").text_content()
    page.locator("#copy").click()
    other = watched.open(page.locator("#link").input_value())
    assert other.eval_on_selector_all("#chart path.line", "p => p.map(e => e.getAttribute('d'))") == drawn()
    assert other.locator("#x-axis").input_value() == "weighted"
    assert other.locator("#w").input_value() == "4"


OVERFLOW = """() => {
  const out = [];
  const page = document.documentElement, width = page.clientWidth;
  const say = (e, what) => out.push(e.tagName + what + e.textContent.slice(0, 60));
  if (page.scrollWidth > width) out.push('the page scrolls sideways: ' + page.scrollWidth);
  for (const e of document.querySelectorAll('body *')) {
    if (e.closest('svg, .visually-hidden, .skip, datalist, option') || e.offsetParent === null) continue;
    const box = e.getBoundingClientRect();
    const leaves = box.right > width + 0.5 || box.left < -0.5;
    if (leaves && !e.closest('.scroll, pre')) say(e, ' leaves the page: ');
    const holds = /^(TD|TH|P|LI|H1|H2|H3|BUTTON|LABEL|SUMMARY|FIGCAPTION|LEGEND)$/.test(e.tagName);
    const boxed = getComputedStyle(e).display !== 'inline';
    if (holds && boxed && e.scrollWidth > e.clientWidth + 1) say(e, ' is too small for its text: ');
  }
  return out;
}"""


@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), pytest.param(1280, "light", marks=pytest.mark.slow)])
def test_nothing_overflows_on_any_page(watch, site, width, scheme):
    watched = watch(width, color_scheme=scheme)
    page = watched.context.new_page()
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    seen = 0
    for path in sorted(site.rglob("*.html")):
        page.goto(path.as_uri())
        page.eval_on_selector_all("details", "all => all.forEach(d => { d.open = true; })")
        assert page.evaluate(OVERFLOW) == [], path.name
        seen += 1
        name = f"{path.relative_to(site)}-{width}-{scheme}.png".replace("/", "-")
        page.screenshot(path=str(SCREENSHOTS / name), full_page=True)
    assert seen == 6 + len(METHODS) + 4 + 3  # and the running times of each board


def test_print_shows_the_board_without_controls(watch, site):
    page = watch().open((site / "index.html").as_uri())
    page.emulate_media(media="print")
    assert not page.locator("#controls").is_visible()
    assert page.locator("#ranking-default-deterministic").is_visible()
    page.screenshot(path=str(SCREENSHOTS / "index-print.png"), full_page=True)


def test_controls_have_names_for_a_screen_reader(watch, site):
    watched = watch()
    for name in ("index.html", "problem/bowl.html"):
        page = watched.open((site / name).as_uri())
        nameless = page.eval_on_selector_all(
            "button, input, select, svg[role=img], [role=region], [role=group]",
            "all => all.filter(e => e.offsetParent !== null || e instanceof SVGElement).filter(e => !(e.textContent.trim() && "
            "e.tagName === 'BUTTON') && !e.getAttribute('aria-label') && !(e.labels && e.labels.length)).map(e => e.outerHTML)",
        )  # fmt: skip
        assert nameless == []


def test_the_server_shows_the_same_page(watch, site):
    one = server(site, port=0)
    Thread(target=one.serve_forever, daemon=True).start()
    try:
        root = f"http://127.0.0.1:{one.server_address[1]}/"
        watched = watch(root=root)
        assert len(rows(watched.open(root))) == len(METHODS)
    finally:
        one.shutdown()
        one.server_close()


def test_empty_and_failed_boards_open_without_complaint(browser, tmp_path):
    failed = make_results({"a": (1, 0, -1.0), "b": (1, 1, -1.0)}, {"p": {}}, 2)
    none = make_results({}, {}, 0)
    for name, results in (("failed", failed), ("none", none)):
        index = write_site(Material({"default": results}), tmp_path / name)
        context = browser.new_context()
        watched = Watched(context)
        for path in sorted(index.parent.rglob("*.html")):
            page = watched.open(path.as_uri())
            assert page.locator("h1").is_visible()
        context.close()
        watched.check(tmp_path.as_uri())


@pytest.mark.slow  # small tables are sorted always
def test_a_large_table_sorts_in_one_go(watch, tmp_path, record_property):
    methods = {f"method_{n:02}": (1 + n % 7, n % 3, 0.2 + 0.04 * n) for n in range(50)}
    results = make_results(methods, {"p": {}, "q": {}}, seeds=10)
    index = write_site(Material({"default": results}), tmp_path / "out")
    page = watch(root=tmp_path.as_uri()).open(index.as_uri())
    times = page.evaluate(
        "() => { const t = document.querySelector('table.ranking'); const out = [];"
        " for (const c of [1, 3, 4, 5]) { const s = performance.now(); BILEVELBENCH.sortTable(t, c, 'ascending');"
        " t.getBoundingClientRect(); out.push(performance.now() - s); } return out; }"
    )
    record_property("milliseconds", max(times))
    print(f"sorting 50 rows takes at most {max(times):.1f} ms")
    assert len(rows(page)) == 50
