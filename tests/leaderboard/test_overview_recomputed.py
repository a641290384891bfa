"""Every number of the overview again, from the published parquet files, by code that shares nothing with the package's.

Only the page is made by the package. What it should say is worked out here with loops over plain lists.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import statistics
from collections import defaultdict
from html import unescape
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bilevelbench.leaderboard.build import build
from bilevelbench.report.contents import read_report
from bilevelbench.report.formats import paper
from bilevelbench.report.text import number

pytestmark = pytest.mark.whole

OFFICIAL = Path(__file__).resolve().parents[2] / "leaderboard" / "results" / "official"
INF = math.inf
EXPONENTS = [-0.5 * n for n in range(1, 13)]
FAILED = {"diverged", "error", "invalid"}
BOARDS = [
    "second_order",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("deterministic", "partial", "full", "finite_sum")),
    *(pytest.param(path.name, marks=pytest.mark.slow) for path in sorted(OFFICIAL.glob("*_tuned"))),
    *(pytest.param(path.name, marks=pytest.mark.slow) for path in sorted(OFFICIAL.glob("*_timed"))),
]


class Plain:
    """The scores of one folder, with a product at one gradient, or in seconds."""

    def __init__(self, folder, second, timed):
        self.folder, self.timed = folder, timed
        packs = sorted((folder / "packs").iterdir())
        runs = pd.concat([pd.read_parquet(pack / "runs.parquet") for pack in packs]).to_dict("records")
        curve = pd.concat([pd.read_parquet(pack / "curve.parquet") for pack in packs])
        rows = defaultdict(list)
        for row in curve.sort_values(["trial_id", "step"]).to_dict("records"):
            if second:
                row["grad_phi"], row["grad_phi_error"] = row["second_order_eps"], 0.0
            rows[row["trial_id"]].append(row)
        self.trials = [self.trial(run, rows[run["trial_id"]]) for run in runs]
        starts = {}
        for trial in self.trials:
            first = trial["rows"][0]
            if math.isfinite(first["grad_phi"] + first["grad_phi_error"]):
                starts.setdefault((trial["problem"], trial["data"]), first["grad_phi"])
        for trial in self.trials:
            trial["start"] = starts[trial["problem"], trial["data"]]
            trial["met"] = [self.met(trial, 10**e * trial["start"]) for e in EXPONENTS]
        self.merge()
        self.problems = sorted({t["problem"] for t in self.trials})
        cells = itertools.product(self.problems, range(12))
        self.median = {
            (p, k): {m: statistics.median(c + s for c, s in self.costs(p, m, k)) for m in self.methods}
            for p, k in cells
        }
        self.nobody = {
            (p, k) for p, k in self.median if all(c == INF for m in self.methods for c, _ in self.costs(p, m, k))
        }
        self.everyone = {cell for cell, costs in self.median.items() if set(costs.values()) == {0}}
        self.cells = [cell for cell in self.median if cell not in self.nobody | self.everyone]

    def trial(self, run, rows):
        params = json.loads(run["problem_params"])
        data = params.pop("data_seed", None)
        given = ",".join(f"{k}={json.dumps(v)}" for k, v in params.items())
        return {
            "problem": run["problem"] + (f"[{given}]" if given else ""), "data": data, "seed": run["seed"],
            "method": run["label"] or run["algorithm"], "failed": run["status"] in FAILED, "rows": rows,
            "spent": run["seconds" if self.timed else "cost"], "products": run["second_order"] > 0,
        }  # fmt: skip

    def spent(self, row, cost):
        """First-order and second-order samples, or seconds and nothing."""
        if self.timed:
            return row["seconds"], 0.0
        known = row.get("second_order_samples", math.nan)
        calls = row["first_order"] + row["second_order"]
        second = known if not math.isnan(known) else cost * row["second_order"] / calls if calls else 0.0
        return cost - second, second

    def met(self, trial, target):
        top = trial["rows"][0]["phi"]
        top += 1e-6 * max(1.0, abs(top))
        if not trial["failed"]:
            for row in trial["rows"]:
                if row["phi"] <= top and row["grad_phi"] + row["grad_phi_error"] <= target:
                    return self.spent(row, row["cost"])
        return INF, 0.0

    def merge(self):
        """Methods whose trials all have the same rows; the shortest name stands for them."""

        def same(one, other):
            return (one["failed"], len(one["rows"])) == (other["failed"], len(other["rows"])) and all(
                a["cost"] == b["cost"]
                and a["second_order"] == b["second_order"]
                and close(a["grad_phi"], b["grad_phi"])
                and close(a["phi"], b["phi"])
                for a, b in zip(one["rows"], other["rows"], strict=True)
            )

        by_method = defaultdict(dict)
        for trial in self.trials:
            by_method[trial["method"]][trial["problem"], str(trial["data"]), trial["seed"]] = trial
        self.names = {}
        for name in sorted(by_method, key=lambda name: (len(name), name)):
            mine = by_method[name]
            twins = [
                other for other in self.names
                if by_method[other].keys() == mine.keys() and all(same(by_method[other][key], mine[key]) for key in mine)
            ]  # fmt: skip
            self.names.setdefault(twins[0] if twins else name, []).append(name)
        self.methods = sorted(self.names)
        distinct = []
        for trial in self.trials:
            if not any(trial["problem"] == other["problem"] and same(trial, other) for other in distinct):
                distinct.append(trial)
        self.curves = len(distinct)

    def of(self, problem, method):
        return [t for t in self.trials if t["problem"] == problem and t["method"] == method]

    def costs(self, problem, method, k):
        return [t["met"][k] for t in self.of(problem, method)]

    def ratio(self, cell, method):
        costs = self.median[cell]
        best = min(costs.values())
        return 1.0 if costs[method] == best else INF if costs[method] == INF or best == 0 else costs[method] / best

    def told(self):
        """The cells in which some median is finite."""
        return [cell for cell in self.cells if min(self.median[cell].values()) < INF]

    def row(self, method):
        ranks = [place(self.median[cell], method) for cell in self.cells]
        met = [c < INF for p, k in self.cells for c, _ in self.costs(p, method, k)]
        return {
            "mean_rank": statistics.fmean(ranks), "reached": sum(met) / len(met), "met": (sum(met), len(met)),
            "relative": statistics.median(self.ratio(cell, method) for cell in self.told()),
            "heat": [
                statistics.median([self.ratio(cell, method) for cell in self.told() if cell[0] == p] or [INF])
                for p in self.problems
            ],
        }  # fmt: skip

    def expected(self, problem, method, k):
        trials = self.of(problem, method)
        successes = [sum(t["met"][k]) for t in trials if t["met"][k][0] < INF]
        lost = [t["spent"] for t in trials if t["met"][k][0] == INF]
        return (sum(successes) + sum(lost)) / len(successes) if successes else INF

    def drawn(self, draws=800):
        """Mean ranks of the methods when problems and then trials are drawn anew."""
        rng = np.random.default_rng(20)
        total, count = np.zeros((draws, len(self.methods))), np.zeros((draws, 1))
        chosen = rng.integers(0, len(self.problems), size=(draws, len(self.problems)))
        for n, problem in enumerate(self.problems):
            keys = sorted({(t["seed"], str(t["data"])) for t in self.trials if t["problem"] == problem})
            tables = []
            for k in (k for p, k in self.cells if p == problem):
                table = np.full((len(self.methods), len(keys)), INF)
                for m, method in enumerate(self.methods):
                    for t in self.of(problem, method):
                        table[m, keys.index((t["seed"], str(t["data"])))] = sum(t["met"][k])
                tables.append(table)
            for draw, times in enumerate((chosen == n).sum(1)):
                for _ in range(times):
                    picks = rng.integers(0, len(keys), size=len(keys))
                    for table in tables:
                        middle = np.sort(table[:, picks], axis=1)
                        middle = (middle[:, (len(keys) - 1) // 2] + middle[:, len(keys) // 2]) / 2
                        total[draw] += (middle[:, None] > middle).sum(1) + ((middle[:, None] == middle).sum(1) + 1) / 2
                        count[draw] += 1
        return total / count


def close(a, b):
    """Equal up to 1e-12, or both missing, as in the last row of a trial that diverged."""
    return math.isclose(a, b, rel_tol=1e-12) or (math.isnan(a) and math.isnan(b))


def place(values, name):
    below = sum(v < values[name] for v in values.values())
    return below + (1 + sum(v == values[name] for v in values.values())) / 2


@pytest.fixture(scope="module", params=BOARDS)
def both(request, tmp_path_factory):
    """The page of one published board as text and data, and its scores worked out here."""
    folder = tmp_path_factory.mktemp("site") / "out"
    build([OFFICIAL / request.param, OFFICIAL / "facts"], folder)
    setting, mode = re.fullmatch(r"(.+?)(?:_(tuned|timed))?", request.param).groups()
    mode = mode or "default"
    key = f"{mode}-{setting.replace('_', '-')}"
    text = (folder / "data" / "board.js").read_text("utf-8")
    data = json.loads(re.search(r"\n\S+ = (.*);\n$", text, re.S)[1])["boards"][key]
    page = (folder / "index.html").read_text("utf-8")
    times = (folder / "running-times" / f"{key}.html").read_text("utf-8")
    return key, page, data, times, Plain(OFFICIAL / request.param, setting == "second_order", mode == "timed")


def plain(html):
    return " ".join(unescape(re.sub(r"<[^>]*>", "", html)).split())


def row_name(head):
    """Of a row that names methods as papers do, the names of their plugins."""
    links = re.findall(
        r'<a href="[^"]*method/[^"]*">(.*?)</a>(?: <small class="plugin">(?:<code>(.*?)</code>)?)?', head
    )
    names = [plain(plugin or title) for title, plugin in links]
    return " = ".join(names) + (" here" if len(names) > 1 else "") if names else plain(head)


def in_papers(names):
    facts = json.loads((OFFICIAL / "facts" / "facts.json").read_text("utf-8"))["methods"]
    return " = ".join(facts[name]["title"] if name in facts else name for name in names)


def table_rows(page, name):
    """(name of the row, [(attributes, text) of its cells]) of a table."""
    body = page.split(f'id="{name}"')[1].split("<tbody>")[1].split("</tbody>")[0]
    for row in body.split("</tr>")[:-1]:
        head = re.search(r"<th [^>]*>(.*?)</th>", row, re.S)[1]
        yield (
            row_name(head),
            [(attributes, plain(cell)) for attributes, cell in re.findall(r"<td([^>]*)>(.*?)</td>", row, re.S)],
        )


def value(attributes):
    return float(re.search(r'data-v="([^"]+)"', attributes)[1])


def shown(ratio):
    """A ratio with two digits, as a cell has it."""
    if ratio < 10:
        return f"{ratio:.1f}"
    rounded = round(ratio, 1 - math.floor(math.log10(ratio)))
    return f"{rounded:,.0f}"


def test_every_cell_of_the_ranking(both):
    key, page, _, _, scores = both
    rows = list(table_rows(page, f"ranking-{key}"))
    want = {m: scores.row(m) for m in scores.methods}
    means = {m: want[m]["mean_rank"] for m in want}
    label = {" = ".join(names) + (" here" if len(names) > 1 else ""): m for m, names in scores.names.items()}
    assert {name for name, _ in rows} == set(label)
    for name, cells in rows:
        method = label[name]
        mine = want[method]
        rank, cost, reached, *rest = cells
        heat, failed = rest[: len(scores.problems)], rest[-1]
        _, mean, *_ = rest[len(scores.problems) :]
        near = {m: v if abs(v - means[method]) > 1e-9 else means[method] for m, v in means.items()}
        assert value(rank[0]) == place(near, method)
        assert rank[1].startswith(f"{value(rank[0]):g}")
        low, high = map(float, re.search(r"between ([\d.]+)–([\d.]+)$", rank[1]).groups())
        assert 1 <= low <= high <= len(rows)
        assert value(mean[0]) == pytest.approx(mine["mean_rank"])
        assert mean[1] == f"{mine['mean_rank']:.1f}"
        assert value(cost[0]) == pytest.approx(mine["relative"])
        assert cost[1] == ("not reached" if mine["relative"] == INF else cost[1])
        assert value(reached[0]) == pytest.approx(mine["reached"])
        assert 'title="{} of {}"'.format(*mine["met"]) in reached[0]
        for (attributes, text), ratio in zip(heat, mine["heat"], strict=True):
            assert value(attributes) == pytest.approx(ratio)
            assert text == ("not reached" if ratio == INF else shown(ratio))
        lost = sum(t["failed"] for t in scores.trials if t["method"] == method)
        assert failed[1].startswith(str(lost))


def test_a_paper_made_of_the_folder_has_the_numbers_of_the_page(both):
    key, page, _, _, scores = both
    if scores.timed:  # a report ranks by calls alone
        return
    table = paper.files(read_report(scores.folder))["ranking.tex"]
    lines = re.findall(r"^([\d.]+ & .*) \\\\$", table, re.M)
    written = {}
    for line in lines:
        rank, interval, name, mean, cost, reached, tied = line.replace("\\_", "_").replace("\\%", "%").split(" & ")
        written[name] = [rank, interval.replace(" to ", "–"), cost.replace("$\\infty$", "∞"), reached, tied, mean]
    shown_there = {}
    for name, (rank, cost, reached, *rest) in table_rows(page, f"ranking-{key}"):
        place, interval = re.fullmatch(r"([\d.]+) ?between (.+)", rank[1]).groups()
        tied, mean, *_ = rest[len(scores.problems) :]
        ratio = value(cost[0])
        cost = "∞" if ratio == INF else number(ratio)
        shown_there[name.removesuffix(" here")] = [place, interval, cost, reached[1], tied[1], mean[1]]
    assert written == shown_there


def test_what_is_not_counted_what_coincides_and_how_many_curves_there_are(both):
    key, page, data, _, scores = both
    part = page.split(f'id="board-{key}"')[1].split("<h3>Performance")[0]
    notes = [plain(note) for note in re.findall(r'<p class="note">(.*?)</p>', part, re.S)]
    for names in scores.names.values():
        said = f"{in_papers(names)} here: their curves coincide on every problem"
        assert any(note.startswith(said) for note in notes) == (len(names) > 1)
    counted = {(data["problems"][cell["p"]], round(2 * math.log10(cell["t"]))) for cell in data["cells"]}
    assert counted == {(p, -k - 1) for p, k in scores.cells}
    told = [note for note in notes if note.startswith("Not counted: ")]
    assert bool(told) == bool(scores.nobody | scores.everyone)
    raised = str.maketrans("⁻·⁰¹²³⁴⁵⁶⁷⁸⁹", "-.0123456789")
    for p in scores.problems:
        mine = sorted(k for q, k in scores.nobody if q == p)
        if mine:
            assert mine == list(range(mine[0], 12))  # who misses an accuracy misses all finer ones
            which = (
                "every accuracy" if len(mine) == 12 else f"10{EXPONENTS[mine[0]]:g}" + " and finer" * (len(mine) > 1)
            )
            (where,) = [part for part in re.split(r"[:;] ", told[0]) if re.search(rf"(on|,) {re.escape(p)}(,|$)", part)]
            assert where.translate(raised).startswith(f"{which} on ")
    caption = plain(part.split("<caption>")[1].split("</caption>")[0])
    assert f"{len(scores.trials)} trials, {scores.curves} distinct curves." in caption
    assert caption.startswith(f"{len(scores.methods)} methods ")


def test_medians_for_the_scripts_at_any_price(both):
    _, _, data, _, scores = both
    label = [m for name in data["methods"] for m, names in scores.names.items() if " = ".join(names) == name]
    for cell in data["cells"]:
        problem, k = data["problems"][cell["p"]], -round(2 * math.log10(cell["t"])) - 1
        for method, entry in zip(label, cell["c"], strict=True):
            trials = scores.costs(problem, method, k)
            for w in (0.5, 1, 3.37, 10):
                want = statistics.median(c + w * s for c, s in trials)
                if entry in (None, -1):
                    found = INF
                    assert (entry == -1) == all(c == INF for c, _ in trials)
                elif isinstance(entry, list):
                    starts = [entry[n] for n in range(2, len(entry), 3)]
                    at = 3 * sum(start <= w for start in starts)
                    found = entry[at] + w * entry[at + 1]
                else:
                    found = entry
                assert found == pytest.approx(want)


def test_expected_running_times(both):
    _, _, _, times, scores = both
    for n, problem in enumerate(scores.problems, 1):
        assert plain(times.split(f'id="times-{n}"')[0].split("<h2>")[-1].split("</h2>")[0]) == problem
        head = times.split(f'id="times-{n}"')[1].split("<thead>")[1].split("</thead>")[0]
        norms = [plain(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", head.split("</tr>")[1])][1:]
        starts = [t["start"] for t in scores.trials if t["problem"] == problem]
        for exponent, text in zip(EXPONENTS, norms, strict=True):
            ends = [float(end.replace(",", "")) for end in text.split(" to ")]
            assert (ends[0], ends[-1]) == pytest.approx(
                (min(starts) * 10**exponent, max(starts) * 10**exponent), rel=0.06
            )
        for name, cells in table_rows(times, f"times-{n}"):
            (method,) = [m for m, names in scores.names.items() if " = ".join(names) == name]
            for k, (attributes, text) in enumerate(cells):
                assert value(attributes) == pytest.approx(scores.expected(problem, method, k))
                met = sum(c < INF for c, _ in scores.costs(problem, method, k))
                trials = len(scores.of(problem, method))
                assert (f"({met} of {trials})" in text) == (0 < met < trials)
                assert (text == "never") == (met == 0)


def test_who_beats_whom_and_who_is_tied(both):
    key, page, _, _, scores = both
    letters = {
        name.removesuffix(" here"): [text for attributes, text in cells if "tied" in attributes]
        for name, cells in table_rows(page, f"ranking-{key}")
    }
    tied = {name: set(text.split()) for name, (text,) in letters.items()}
    label = {" = ".join(names): m for m, names in scores.names.items()}
    rows = [(name.partition(". ")[2], cells) for name, cells in table_rows(page, f"wins-{key}")]
    order = [name for name, _ in rows]
    drawn = scores.drawn()
    for name, cells in rows:
        for other, (_, text) in zip(order, cells, strict=True):
            if other == name:
                assert text == "–"
                continue
            a, b = label[name], label[other]
            share = sum(scores.median[cell][a] < scores.median[cell][b] for cell in scores.cells) / len(scores.cells)
            assert float(text.strip("()")) == pytest.approx(100 * share, abs=0.5 + 1e-9)
            assert text.startswith("(") == bool(tied[name] & tied[other])
            ahead = drawn[:, scores.methods.index(a)] - drawn[:, scores.methods.index(b)]
            tail = min((ahead <= 0).mean(), (ahead >= 0).mean())
            if not 0.01 < tail < 0.045:  # between them two sets of draws may decide differently
                assert bool(tied[name] & tied[other]) == (tail >= 0.025), (name, other, tail)


def test_the_answer_is_true(both):
    key, page, _, _, scores = both
    said = plain(page.split(f'id="board-{key}"')[1].split('<p class="answer">')[1].split("</p>")[0])
    means = {m: scores.row(m)["mean_rank"] for m in scores.methods}
    best = min(means, key=means.get)
    assert sum(abs(v - means[best]) < 1e-9 for v in means.values()) == 1
    paid = "calls" if key.endswith(("-deterministic", "-second-order")) else "samples"
    least = "Least time" if scores.timed else f"Fewest {paid}"
    assert said.startswith(f"{least}: {in_papers(scores.names[best])}, {scores.row(best)['reached']:.0%} reached")
    products = {m: any(t["products"] for t in scores.trials if t["method"] == m) for m in scores.methods}
    gradient = [m for m in means if not products[m]]
    if gradient and len(gradient) < len(means) and products[best]:
        first = min(gradient, key=means.get)
        relative = scores.row(first)["relative"]
        times = (
            "which misses half of the accuracies or more"
            if relative == INF
            else f"{shown(relative)} times the least {'time' if scores.timed else 'cost'}"
        )
        assert f"Best without second derivatives: {in_papers(scores.names[first])}, rank" in said
        assert f", {times}." in said
