"""The site as files: complete, escaped, without torch, from results of every odd kind. No browser."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from threading import Thread

import numpy as np
import pandas as pd
import pytest
from helpers import Reader
from leaderboard_data import BREAK, IMAGE, METHODS, PROBLEMS, SCRIPT, make_results, material

from bilevelbench.errors import InvalidInput, StoreError
from bilevelbench.leaderboard import boards
from bilevelbench.leaderboard.board_data import by_price, for_scripts
from bilevelbench.leaderboard.build import MARK, build, write_site
from bilevelbench.leaderboard.collect import Material, combine, load
from bilevelbench.leaderboard.facts import read_facts
from bilevelbench.leaderboard.fragments import script_json
from bilevelbench.leaderboard.serve import server
from bilevelbench.leaderboard.settings import settings_of_trials
from bilevelbench.leaderboard.site import Site
from bilevelbench.report.analysis.ranking import board, counted, medians
from bilevelbench.report.analysis.rates import read_rates
from bilevelbench.report.analysis.summary import titled
from bilevelbench.report.text import printable
from bilevelbench.results.files import owned
from bilevelbench.results.schema import Results, curve_frame, runs_frame
from bilevelbench.results.store import Store
from bilevelbench.untrusted import slug

pytestmark = pytest.mark.whole

EMPTY = Results(runs_frame([]), curve_frame([]), [])


def pages(site):
    return {str(path.relative_to(site)): path.read_text(encoding="utf-8") for path in sorted(site.rglob("*.html"))}


def data_of(path):
    text = path.read_text(encoding="utf-8")
    return json.loads(re.search(r"\n\S+ = (.*);\n$", text, re.S)[1])


def test_there_is_a_page_for_everything(site):
    found = pages(site)
    assert {"index.html", "tables.html", "counting.html", "data.html"} <= set(found)
    assert sum(name.startswith("method/") for name in found) == len(METHODS)
    assert sum(name.startswith("problem/") for name in found) == len(PROBLEMS)


def test_every_link_leads_to_a_file_and_an_id_of_the_site(site):
    for name, text in pages(site).items():
        html = Reader(text)
        for tag, attribute, value in html.attributes:
            if attribute not in ("href", "src") or value == "data:,":
                continue
            if tag == "a" and value.startswith("https://"):  # where a reader may go; nothing is fetched from there
                continue
            file, _, anchor = value.partition("#")
            target = (site / name).parent / file if file else site / name
            assert target.is_file(), (name, tag, value)
            if anchor and "=" not in anchor:  # that is a state, which the page's script reads
                assert f'id="{anchor}"' in target.read_text(encoding="utf-8"), (name, value)


def test_nothing_points_outside(site):
    for path in site.rglob("*"):
        if path.suffix in (".html", ".css", ".js"):
            text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
            text = re.sub(r'<a [^>]*href="https://[^"]*"|<pre class="bibtex.*?</pre>', "", text, flags=re.DOTALL)
            assert not re.search(r"(?:https?:)?//[a-z0-9-]+\.[a-z]", text), path
            assert "@import" not in text
            assert "url(" not in text


def test_ids_are_unique_tables_have_captions_and_headers_a_scope(site):
    for name, text in pages(site).items():
        html = Reader(text)
        ids = [value for _, attribute, value in html.attributes if attribute == "id"]
        assert len(ids) == len(set(ids)), name
        assert html.tags.count("table") == html.tags.count("caption"), name
        assert html.tags.count("th") == sum(a == "scope" for t, a, _ in html.attributes if t == "th"), name
        assert html.tags.count("h1") == 1


def test_the_name_of_a_link_holds_the_words_that_are_seen(site):
    """Or who speaks to a browser cannot name what they see."""
    found = [
        m for text in pages(site).values() for m in re.findall(r'<a [^>]*aria-label="([^"]*)"[^>]*>([^<]+)</a>', text)
    ]
    assert "CSV" in {seen for _, seen in found}
    assert [(label, seen) for label, seen in found if seen.strip() not in label] == []


def test_what_a_plugin_says_is_text(site):
    allowed = {"static/site.js", "static/chart.js", "static/board.js", "static/curves.js", "data/board.js"}
    for name, text in pages(site).items():
        html = Reader(text)
        assert "img" not in html.tags, name
        assert not [a for a in html.attributes if a[1].startswith("on")], name
        sources = {v.removeprefix("../") for t, a, v in html.attributes if t == "script" and a == "src"}
        assert html.tags.count("script") == len(sources), name  # no script without a file of ours
        assert all(s in allowed or s.startswith("data/problem-") for s in sources), name
    index = "".join(Reader(pages(site)["index.html"]).text)
    for nasty in (SCRIPT, IMAGE, BREAK):
        assert printable(nasty) in index


def test_messages_and_parameters_are_on_the_method_page(site):
    text = "".join(Reader((site / "method" / f"{slug('lost')}.html").read_text(encoding="utf-8")).text)
    assert f"x is not finite after step 20 {SCRIPT}" in text
    assert "K=3, lam=0.123457" in text
    gd = "".join(Reader((site / "method" / "gd.html").read_text(encoding="utf-8")).text)
    for said in (f"x <- x - eta d   {SCRIPT}", f"step {IMAGE}", f"Somebody {SCRIPT}", "2 (up to logarithms)"):
        assert said in gd


def test_a_method_says_where_it_stands_on_each_board(everything):
    data, folder = everything
    whole = Site(data, "make")
    assert len({one.mode for one in whole.boards}) > 1
    for method, file in whole.method_file.items():
        found = re.search(r'<table id="standing">.*?</table>', (folder / file).read_text("utf-8"), re.S)
        told = re.findall(
            r'index\.html#mode=(\w+)&amp;setting=([\w-]+)">([\d.]+) of (\d+)</a> \(([\d.]+)–([\d.]+)\)', found[0]
        )
        wanted = {
            (one.mode, one.setting, f"{row['rank']:g}", str(len(one.rows)), f"{row['low']:g}", f"{row['high']:g}")
            for one in whole.boards
            for row in one.standing()
            if row["method"] == method
        }
        assert len(told) == len(wanted)
        assert set(told) == wanted


def test_data_files_cannot_close_a_script(site):
    for path in (site / "data").iterdir():
        assert "<" not in path.read_text(encoding="utf-8")
        assert "\u2028" not in path.read_text(encoding="utf-8")
    names = data_of(site / "data" / "board.js")["boards"]["default-deterministic"]["methods"]
    assert set(names) == {printable(m) for m in METHODS}
    assert json.loads(script_json({"a": BREAK})) == {"a": BREAK}
    with pytest.raises(ValueError, match="Out of range float"):
        script_json(float("inf"))


def test_the_board_in_the_html_is_that_of_the_statistics(site, tmp_path):
    results = material(tmp_path).results["default"]
    found = settings_of_trials(results, {})
    titles = sorted(set(titled(results.runs)["title"][(found == "deterministic").to_numpy()]))
    assert len(titles) == 3
    one = boards.make_board(results, "default", "deterministic", titles)
    expected = board(one.costs, 1.0)
    text = (site / "index.html").read_text(encoding="utf-8")
    table = text.split('id="ranking-default-deterministic"')[1].split("</table>")[0]
    links = re.findall(r'<a href="(method/[^"]+)"', table)
    assert links == [f"method/{slug(m)}.html" for m in expected["method"]]
    ranks = [float(v) for v in re.findall(r'class="rank" data-v="([^"]+)"', table)]
    assert ranks == list(expected["rank"])
    costs = [float(v) for v in re.findall(r'class="relative" data-v="([^"]+)"', table)]
    assert costs == list(expected["relative"])
    assert "Infinity" not in table
    assert ">nan<" not in text
    assert ">inf<" not in text


def test_the_data_for_scripts_give_the_medians_back(tmp_path):
    results = material(tmp_path).results["default"]
    one = boards.make_board(results, "default", "full", ["noisy[sigma_g=0.5]"])
    data = for_scripts(one)
    kept = counted(one.costs)
    assert [cell["t"] for cell in data["cells"]] == sorted(kept["target"].unique())
    for price in (0.5, 1.0, 3.37, 10.0):
        want = medians(kept, price)
        for cell in data["cells"]:
            for n, method in enumerate(data["methods"]):
                assert at_price(cell["c"][n], price) == pytest.approx(
                    want.loc[("noisy[sigma_g=0.5]", cell["t"]), method]
                )


def test_a_trial_that_was_not_run_is_not_one_that_failed():
    results = make_results({"a": (1, 0, 1.0), "b": (1, 0, 1.0)}, {"p": {}}, seeds=3)
    keep = ~((results.runs["label"] == "b") & (results.runs["seed"] == 2))
    less = Results(results.runs[keep], results.curve, [])
    one = boards.make_board(less, "default", "deterministic", ["p"])
    data = for_scripts(one)
    mine = one.costs[one.costs["method"] == "b"].groupby("target")["cost"]
    assert set(mine.size()) == {2}
    b = data["methods"].index("b")
    assert [at_price(cell["c"][b], 1) for cell in data["cells"]] == [mine.median()[cell["t"]] for cell in data["cells"]]


def at_price(entry, price):
    """A median as the scripts read it."""
    if entry in (None, -1):
        return np.inf
    if not isinstance(entry, list):
        return entry
    at = 3 * sum(entry[n] <= price for n in range(2, len(entry), 3))
    return entry[at] + price * entry[at + 1]


@pytest.mark.parametrize("trials", [1, 2, 5, 10])
def test_medians_follow_the_price_exactly(trials):
    draw = np.random.default_rng(trials)
    for _ in range(30):
        first, second = (draw.integers(0, 40, trials).astype(float) for _ in range(2))
        entry = by_price(first, second)
        for price in (0.5, 0.77, 1.0, 2.5, 10.0):
            assert at_price(entry, price) == pytest.approx(np.median(first + price * second))
    lost, none = np.full(trials, np.inf), np.zeros(trials)
    assert by_price(lost, none) == -1
    assert by_price(np.append(lost, 3.0), np.append(none, 1.0)) is None
    assert by_price(np.full(trials, 3.0), none) == 3


def test_the_same_results_give_the_same_bytes(site, tmp_path):
    again = write_site(material(tmp_path), tmp_path / "out").parent
    files = sorted(str(p.relative_to(site)) for p in site.rglob("*") if p.is_file())
    assert files == sorted(str(p.relative_to(again)) for p in again.rglob("*") if p.is_file())
    for name in files:
        assert (site / name).read_bytes() == (again / name).read_bytes(), name


def test_downloads_hold_the_numbers(site):
    runs = pd.read_csv(site / "csv" / "runs.csv")
    assert len(runs) == len(METHODS) * len(PROBLEMS) * 5 + 9
    table = pd.read_csv(site / "csv" / "board-default-deterministic.csv")
    assert set(table["method"]) == {printable(m) for m in METHODS}
    costs = pd.read_csv(site / "csv" / "costs-default-deterministic.csv")
    assert np.isinf(costs.loc[costs["method"] == "lost", "cost"]).all()
    assert len(pd.read_csv(site / "csv" / "rates.csv")) == 2


def test_every_file_to_download_is_offered(site):
    offered = set(re.findall(r'<a href="(csv/[^"]+)" download', (site / "data.html").read_text(encoding="utf-8")))
    assert offered == {f"csv/{path.name}" for path in (site / "csv").iterdir()}


def test_dates_and_environments_are_shown(site):
    text = "".join(Reader((site / "data.html").read_text(encoding="utf-8")).text)
    for said in ("2026-03-04", "0123456789", f"Imaginary {SCRIPT}", "2.13.0"):
        assert said in text


# ---- odd results


@pytest.mark.parametrize(
    ("results", "said"),
    [
        pytest.param(EMPTY, "There are no results yet", id="empty"),
        pytest.param(make_results({"only": (1, 0, 1.0)}, {"p": {}}, 1), "1 method on", id="one trial"),
        pytest.param(make_results({"a": (1, 0, -1.0), "b": (1, 1, -1.0)}, {"p": {}}, 3), "6 failed", id="failed"),
        pytest.param(
            Results(make_results({"a": (1, 0, 1.0)}, {"p": {}}, 2).runs, curve_frame([]), []), "2 trials", id="no curve"
        ),
    ],
)  # fmt: skip
def test_odd_results_make_a_page_that_says_so(tmp_path, results, said):
    index = write_site(Material({"default": results, "tuned": EMPTY}), tmp_path / "out")
    assert said in " ".join("".join(Reader(index.read_text(encoding="utf-8")).text).split())
    for text in pages(tmp_path / "out").values():
        assert not {"nan", "inf", "None"} & {cell.strip() for cell in Reader(text).cells}


def test_values_that_are_not_finite_do_not_reach_a_page(tmp_path):
    results = make_results({"a": (1, 0, 1.0), "b": (1, 1, 1.0)}, {"p": {}}, 2)
    results.curve.loc[::2, ["grad_phi", "phi"]] = np.nan
    results.curve.loc[1::4, ["grad_phi"]] = np.inf
    results.runs.loc[:, ["best_grad_phi", "phi", "seconds", "pack_lanes"]] = np.nan
    write_site(Material({"default": results}), tmp_path / "out")
    for text in pages(tmp_path / "out").values():
        assert not {"nan", "inf"} & {cell.strip().lower() for cell in Reader(text).cells}


def test_newer_schema_missing_columns_and_missing_folders_are_sentences(tmp_path):
    with pytest.raises(StoreError, match=r"no results: .*nowhere.* does not exist"):
        build([tmp_path / "nowhere"], tmp_path / "out")
    with pytest.raises(InvalidInput, match="at least one folder"):
        build([], tmp_path / "out")
    results = make_results({"a": (1, 0, 1.0)}, {"p": {}}, 1)
    newer = tmp_path / "newer"
    newer.mkdir()
    results.runs.assign(schema_version=99).to_parquet(newer / "runs.parquet")
    results.curve.to_parquet(newer / "curve.parquet")
    with pytest.raises(StoreError, match=r"newer bilevelbench \(schema 99"):
        build([newer], tmp_path / "out")
    results.runs.drop(columns="label").to_parquet(newer / "runs.parquet")
    with pytest.raises(StoreError, match=r"`runs` in .* has no column 'label'"):
        build([newer], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_folders_are_joined_and_a_clash_names_both(tmp_path):
    results = make_results({"a": (1, 0, 1.0)}, {"p": {}}, 2)
    other = Results(results.runs.assign(phi=7.0), results.curve, [])
    assert len(combine([(tmp_path / "one", results), (tmp_path / "two", results)]).runs) == 2
    with pytest.raises(StoreError, match=r"one.*two.*disagree on trial"):
        combine([(tmp_path / "one", results), (tmp_path / "two", other)])


def test_stored_folders_rates_and_facts_are_found(tmp_path):
    results = make_results({"a": (1, 0, 1.0)}, {"p": {}}, 2)
    for name in ("plain", "rates", "tuned"):
        Store(tmp_path / name).add(results.runs, results.curve, {})
    (tmp_path / "rates" / "rates.json").write_text('{"title": "T", "rows": []}')
    (tmp_path / "facts").mkdir()
    (tmp_path / "facts" / "facts.json").write_text('{"methods": {"a": {"family": "penalty"}}}')
    found = load([tmp_path / "plain", tmp_path / "rates", tmp_path / "facts"], [tmp_path / "tuned"])
    assert len(found.results["default"].runs) == 2  # the trials of a measurement of rates stay off the board
    assert len(found.results["tuned"].runs) == 2
    assert [(table.title, table.rows) for table in found.rates] == [("T", [])]
    index = write_site(found, tmp_path / "site")
    assert 'data-mode="tuned"' in index.read_text(encoding="utf-8")
    assert 'class="dot penalty"' in index.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("reader", "text", "said"),
    [
        (read_facts, "{", "is not JSON that can be read"),
        (read_facts, "[]", "holds no JSON object"),
        (read_facts, '{"methods": {"a": 3}}', "is not a file of facts: methods.a = 3"),
        (read_rates, '{"title": "T", "rows": 3}', "is not a file of measured rates .*; measure again"),
        (read_rates, '{"title": "T", "rows": [{"table": 1}]}', "has a row that has no 'method'; measure again"),
    ],
)
def test_files_that_are_not_what_they_should_be_are_sentences(tmp_path, reader, text, said):
    (tmp_path / "file.json").write_text(text)
    with pytest.raises(StoreError, match=said):
        reader(tmp_path / "file.json")


def test_a_folder_that_is_not_ours_is_left_alone(tmp_path):
    data = Material({"default": make_results({"a": (1, 0, 1.0)}, {"p": {}}, 1)})
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").touch()
    with pytest.raises(InvalidInput, match="was not built by bilevelbench"):
        write_site(data, mine)
    assert [p.name for p in mine.iterdir()] == ["thesis.tex"]
    write_site(data, tmp_path / "out")
    (tmp_path / "out" / "stale.html").touch()
    write_site(data, tmp_path / "out")
    assert not (tmp_path / "out" / "stale.html").exists()
    assert (tmp_path / "out" / MARK).is_file()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mine", "out"]
    with pytest.raises(StoreError, match="cannot write the site"):
        write_site(data, mine / "thesis.tex" / "out")


def test_the_next_build_removes_what_killed_ones_have_left(tmp_path):
    """Of a process that is gone, or an hour old; what another one is at work on stays, and so does all that is not ours."""
    data, out = Material({"default": make_results({"a": (1, 0, 1.0)}, {"p": {}}, 1)}), tmp_path / "out"
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    mine = owned()
    of_the_dead = mine.replace(f"-{os.getpid()}-", f"-{gone.pid}-")
    elsewhere = "-00000000" + of_the_dead[9:]
    old = mine[:-2] + ("0-" if mine[-2] != "0" else "1-")
    names = [f".out{of_the_dead}new", f".out{of_the_dead}old", f".out{mine}new", f".out{elsewhere}new", f".out{old}old"]
    names += [f".other{of_the_dead}new", ".out-thesis-new", ".out-00000000-mine-new"]
    for name in names:
        (tmp_path / name / "static").mkdir(parents=True)
    os.utime(tmp_path / names[4], (time.time() - 7200,) * 2)
    os.utime(tmp_path / names[7], (time.time() - 7200,) * 2)
    write_site(data, out)
    assert {path.name for path in tmp_path.iterdir()} == {"out", *names[2:4], *names[5:]}


def test_names_make_different_files():
    names = ["a_b", "a-b", "a b", "A_B", "", "..", "../x", SCRIPT, "é", "x" * 300, "index"]
    slugs = [slug(name) for name in names]
    assert len(set(slugs)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9_-]{1,60}", s) for s in slugs)


def test_the_server_serves_the_site_and_nothing_else(site, tmp_path):
    with pytest.raises(InvalidInput, match="holds no site"):
        server(tmp_path)
    one = server(site, port=0)
    Thread(target=one.serve_forever, daemon=True).start()
    try:
        address, port = one.server_address[:2]
        assert address == "127.0.0.1"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/index.html", timeout=10) as answer:
            assert answer.read() == (site / "index.html").read_bytes()
        with pytest.raises(InvalidInput, match=f"cannot listen on port {port}"):
            server(site, port)
    finally:
        one.shutdown()
        one.server_close()


def test_building_never_imports_torch(tmp_path):
    results = make_results({"a": (1, 0, 1.0)}, {"p": {}}, 2)
    Store(tmp_path / "store").add(results.runs, results.curve, {})
    code = (
        "import sys, pathlib\n"
        "from bilevelbench.leaderboard.build import build\n"
        "import bilevelbench.leaderboard.serve\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "build([folder / 'store'], folder / 'site')\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# ---- a large board


@pytest.mark.parametrize(("problems", "seeds"), [(4, 2), pytest.param(20, 10, marks=pytest.mark.slow)])
def test_a_board_of_50_methods(tmp_path, record_property, problems, seeds):
    methods = {f"method_{n:02}": (1 + n % 7, n % 3, 0.2 + 0.04 * n) for n in range(50)}
    results = make_results(methods, {f"problem_{n:02}": {} for n in range(problems)}, seeds=seeds)
    assert len(results.curve) == 500 * problems * seeds
    start, busy = time.perf_counter(), time.process_time()
    index = write_site(Material({"default": results}), tmp_path / "out")
    seconds, busy = time.perf_counter() - start, time.process_time() - busy
    site = tmp_path / "out"
    loaded = [index, *(site / "static").iterdir(), site / "data" / "board.js"]
    size = sum(path.stat().st_size for path in loaded)
    record_property("seconds", round(seconds, 1))
    print(
        f"built in {seconds:.1f} s ({busy:.1f} s of processor); the first page with all that it loads has {size / 1e6:.2f} MB"
    )
    assert size < 2e6


# ---- colours


def contrast(a, b):
    def luminance(colour):
        c = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        c = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
        return float(c @ [0.2126, 0.7152, 0.0722])

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_has_contrast_in_light_and_dark(site):
    css = (site / "static" / "site.css").read_text(encoding="utf-8")
    light, dark, *heat = re.findall(r":root \{(.*?)\}", css, re.S)[:2] + re.findall(r":root \{ (--h0.*?)\}", css)
    for block in (light + heat[0], dark + heat[1]):
        colours = {
            n: c if len(c) == 7 else "#" + "".join(2 * x for x in c[1:])
            for n, c in re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{3,6});", block)
        }
        for ink in ("ink", "soft", "accent"):
            for paper in ("paper", "band", "hover"):
                assert contrast(colours[ink], colours[paper]) >= 4.5, (ink, paper, colours)
        cells = [colours[f"h{n}"] for n in range(7)]
        assert len(set(cells)) == 7
        assert all(contrast(colours["ink"], one) >= 4.5 for one in cells)
        for family in ("penalty", "implicit", "unrolled", "zeroth-order", "other"):
            assert contrast(colours[family], colours["paper"]) >= 3, family


def test_who_beats_whom_of_a_large_board_is_about_its_first_methods(tmp_path):
    methods = {f"m{n}": (1, 0, 1.0 + n / 50) for n in range(62)}
    page = write_site(Material({"default": make_results(methods, {"bowl": {}}, seeds=1)}), tmp_path / "out").read_text()
    table = page.partition('class="wins"')[2].partition("</table>")[0]
    assert "Only the first 60 of 62 methods are shown." in table
    assert table.count('<th scope="row"') == 60
    few = dict(list(methods.items())[:3])
    small = write_site(Material({"default": make_results(few, {"bowl": {}}, seeds=1)}), tmp_path / "few").read_text()
    assert "Only the first" not in small
