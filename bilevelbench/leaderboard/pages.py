"""The pages of the site and the files beside them, by name: what `build` writes."""

from __future__ import annotations

from itertools import groupby
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from bilevelbench.leaderboard import boards
from bilevelbench.leaderboard.boards import Board
from bilevelbench.leaderboard.claims import KINDS, PICTURE, pictures, rate_tables
from bilevelbench.leaderboard.clock import TIMED
from bilevelbench.leaderboard.collect import MODES, Material
from bilevelbench.leaderboard.data_files import board_downloads, download_list, downloads, figures, picture, scripts
from bilevelbench.leaderboard.fragments import breakable, duration, exact_text, number_text, polyline, times
from bilevelbench.leaderboard.heat_map import heat_map, running_time_tables, short_names, win_matrix
from bilevelbench.leaderboard.links import NO_LINKS, PAPER, Links, citation
from bilevelbench.leaderboard.method_page import MethodPages
from bilevelbench.leaderboard.problem_page import problem_page
from bilevelbench.leaderboard.settings import SETTINGS, budget_words, standing_words
from bilevelbench.leaderboard.site import Site
from bilevelbench.model.family import FAMILIES
from bilevelbench.report.analysis.answer import answer
from bilevelbench.report.analysis.moods import SIGNS, mood
from bilevelbench.report.analysis.ranking import power, uncounted_words
from bilevelbench.report.analysis.summary import ACCURACIES, TARGETS
from bilevelbench.report.analysis.tuning import readable, remarks
from bilevelbench.report.analysis.verdicts import ExperimentOutcome, Verdict
from bilevelbench.report.figures.experiment import CAPTION, experiment_figure
from bilevelbench.report.figures.style import svg
from bilevelbench.report.page_environment import content_policy, page_environment
from bilevelbench.report.text import formula, printable, superscripts
from bilevelbench.results import reached
from bilevelbench.results.provenance import commits, days, machines
from bilevelbench.results.status import Status


def site_files(material: Material, command: str, links: Links = NO_LINKS) -> dict[str, str | bytes]:
    """All files of the site from its material."""
    site = Site(material, command, links)
    return {**_pages(site), **scripts(site), **downloads(site), **figures(site), **pictures(site)}


def _pages(site: Site) -> dict[str, str]:
    jinja, shared, links = _environment(), _shared(site), site.links

    def render(template: str, root: str = "", **values: Any) -> str:
        return jinja.get_template(template).render(root=root, page=template, **shared, **values)

    rates = rate_tables(site)
    pages = {
        "index.html": render("index.html", boards=[_board(site, b) for b in site.boards], modes=MODES, rates=rates,
                             settings_names={key: s.name for key, s in SETTINGS.items()}, titles=site.titles,
                             problem_settings={t: site.kind_of(t) for t in site.titles},
                             priced=_priced(site)),
        "tables.html": render("tables.html", rates=rates, measured_kappa=any(
            row["over"] == "kappa" for table in site.material.rates for row in table.rows)),
        "experiments.html": render("experiments.html", caption=CAPTION, experiments=_experiments(site)),
        "use.html": render("use.html", install=links.install, repository=links.repository, citation=citation(),
                           hours=duration(_seconds(site))),
        "counting.html": render("counting.html", statuses=list(Status), failed=[status for status in Status if status.failed],
                                weights=[f"{w:g}" for w in boards.WEIGHTS]),
        "data.html": render("data.html", environments=site.environments, downloads=download_list(site), priced=_priced(site),
                            board_files=board_downloads(site),
                            confirmed=sum(int((r.confirmations() > 1).sum()) for r in site.results.values())),
    }  # fmt: skip
    for title in site.titles:
        pages[site.problem_file[title]] = render("problem.html", "../", **problem_page(site, title))
    for one in site.boards:
        name = f"{SETTINGS[one.setting].name}, {MODES[one.mode]}"
        pages[_times_file(one)] = render(
            "running_times.html", "../", name=name, tables=running_time_tables(one), board=one
        )
    methods = MethodPages(site)
    for method in site.methods:
        pages[site.method_file[method]] = render("method.html", "../", **methods.page(method))
    return pages


def _shared(site: Site) -> dict[str, Any]:
    """What every page is given."""
    return {
        "nav": [
            ("index.html", "Overview"),
            ("tables.html", "The paper's tables"),
            ("experiments.html", "The paper's experiments"),
            ("counting.html", "How it is counted"),
            ("data.html", "Data"),
            ("use.html", "Run, submit, cite"),
        ],
        "lead": _lead(site),
        # `file:` for a site that is opened from a folder, whose files not every browser takes for the page's own
        "policy": content_policy("'self' file:", "'self' file:", "'self' file: data:"),
        "command": printable(site.command),
        "notes": site.material.notes,
        "problem_file": site.problem_file,
        "method_file": site.method_file,
        "kinds": site.kinds,
        "families": [f for f in FAMILIES if any(k["family"] == f for k in site.kinds.values())],
        "ratio": site.ratio,
        "marked": site.material.marked,
        "accuracies": [f"{eps:g}" for eps in ACCURACIES],
        "targets": superscripts(f"{len(TARGETS)} accuracies from {power(TARGETS[0])} to {power(TARGETS[-1])}"),
        **_outside(site),
    }


def _outside(site: Site) -> dict[str, Any]:
    """Where the pages lead to, and the picture that stands for them elsewhere: an address, where the site has one."""
    links, files = site.links, [f"{PICTURE}.{kind}" for kind in KINDS] if site.measured else []
    known = ((links.repository, "Repository"), (PAPER, "The paper"), (links.docs, "Documentation"))
    preview = f"{PICTURE}.png" if files else ""
    return {
        "outside": [(address, text) for address, text in known if address],
        "claim_files": files,
        "preview": f"{links.address.rstrip('/')}/{preview}" if links.address and preview else preview,
    }


def _priced(site: Site) -> dict[str, Any]:
    """On how many problems the price of a product was measured, and when and where."""
    facts = site.material.facts
    return {"problems": len(facts.get("hvp_ratio", {})), "made": printable(facts.get("made", ""))}


def _seconds(site: Site) -> float:
    """What the trials took, pack by pack, as far as their records say."""
    records = [record for results in site.results.values() for record in results.records]
    return sum(float(record.get("total_seconds") or 0.0) for record in records)


def _lead(site: Site) -> dict[str, Any]:
    origins = [o for ones in site.origin.values() for o in ones]
    return {
        "trials": len(site.runs),
        "curves": sum(one.curves for one in site.boards),
        "methods": len(site.methods),
        "problems": len(site.titles),
        "failed": int(reached.failed(site.runs).sum()),
        "dates": days(origins) or "on a day that was not recorded",
        "machines": machines(origins),
        "commits": commits(origins),
    }


def _board(site: Site, one: Board) -> dict[str, Any]:
    sparks = boards.sparklines(one.results, sorted(one.costs["problem"].unique()))
    lowest = min((min(s) for s in sparks.values()), default=-1.0)
    trials: dict[str, list[str]] = {}
    for method, trial in zip(one.runs["method"], one.runs["trial_id"], strict=True):
        trials.setdefault(method, []).append(trial)
    heat = heat_map(one, site.problem_file)
    rows = []
    n = len(one.rows)
    for record in one.rows.to_dict("records"):
        row: dict[str, Any] = {str(key): value for key, value in record.items()}
        spark = sparks.get(row["method"])
        rows.append(
            {
                **row,
                **site.kinds[row["method"]],
                "bar": ((row["low"] - 1) / max(n - 1, 1) * 56 + 2, (row["high"] - row["low"]) / max(n - 1, 1) * 56),
                "mark": (row["rank"] - 1) / max(n - 1, 1) * 56 + 2,
                "spark": polyline(spark, min(lowest, -0.5)) if spark else "",
                "fell": spark[-1] if spark else None,
                "members": one.merged.of(row["method"]),
                "cells": heat[row["method"]],
                "verified": site.again(trials[row["method"]])["mark"],
            }
        )
    return {
        "key": one.key, "mode": one.mode, "setting": one.setting, "rows": rows, "problems": one.problems, "count": n,
        "short": short_names(one.problems),
        "trials": len(one.runs), "curves": one.curves, "methods": one.runs["method"].nunique(), "times": _times_file(one),
        "notes": _notes(site, one), "wins": win_matrix(one), "search": _search(site, one),
        "seeds": int(one.runs.groupby(["title", "method"]).size().max()),
        "profile": boards.profile_table(one),
        "answer": printable(_answer(site, one)),
        "text": _board_text(site, one), "standing": _standing(site, one),
    }  # fmt: skip


def _notes(site: Site, one: Board) -> list[str]:
    """What coincides, what is amiss with starts, and what is not counted."""
    titles = {method: kind["title"] for method, kind in site.kinds.items()}
    alike = [one.merged.sentence(method, titles) for method in sorted(one.merged.members)]
    return [superscripts(note) for note in (*alike, *one.notes, uncounted_words(one.costs)) if note]


def _search(site: Site, one: Board) -> list[dict[str, Any]]:
    """What the parameters of a tuned board were found by, and what that cost; nothing where no record of it came along."""
    mine = set(one.runs["trial_id"])
    found = [tuning for trials, tuning in site.material.searches if one.mode == "tuned" and not mine.isdisjoint(trials)]
    tables = [(tuning, readable(tuning)) for tuning in found]
    return [
        {
            "summary": tuning.summary, "notes": remarks(tuning), "columns": list(people.columns),
            "rows": people.to_numpy().tolist(),
        }
        for tuning, people in tables
    ]  # fmt: skip


def _answer(site: Site, one: Board) -> str:
    """With the names of the papers."""
    names = {m: " = ".join(site.kinds[member]["title"] for member in one.merged.of(m)) for m in one.rows["method"]}
    rows = one.rows.assign(method=one.rows["method"].map(names))
    # by the clock a product has no price of its own
    priced = {} if one.mode == TIMED else one.intervals
    orders = {w: [names[method] for method in ranked.index] for w, ranked in priced.items()}
    return answer(rows, orders, site.paid[one.mode, one.setting])


def _times_file(one: Board) -> str:
    return f"running-times/{one.key}.html"


def _board_text(site: Site, one: Board) -> str:
    """What the setting is, and the budget."""
    clock = (
        " Ranked by seconds of the method's own steps, on the machine above: trials ran one at a time, and evaluations are "
        "not in it."
    )
    said = f"{SETTINGS[one.setting].what} {budget_words(site.budgets[one.mode, one.setting])}"
    return printable(said + (clock if one.mode == TIMED else ""))


def _standing(site: Site, one: Board) -> str:
    """Who stands there and why, by the names of the papers."""
    titles = {str(row["method"]): site.kinds[str(row["method"])]["title"] for row in one.standing()}
    claims = {
        method: site.fact(method, site.kinds[method]["algorithm"])["claims"]
        for method in sorted(titles, key=lambda method: titles[method].lower())
    }
    return printable(standing_words(one.setting, claims, titles))


def _experiments(site: Site) -> list[dict[str, Any]]:
    return [
        {
            "title": printable(one.figure.title), "claim": printable(one.figure.claim), "groups": _by_claim(one),
            "problems": list(dict.fromkeys(row.problem for row in one.verdicts)),
            "tuning": one.tuning, "made": one.made, "id": f"experiment-{n}", "picture": picture(n),
            "drawing": Markup(svg(experiment_figure(one, heading=False), f"x{n}-")),
        }
        for n, one in enumerate(site.material.experiments)
    ]  # fmt: skip


def _by_claim(one: ExperimentOutcome) -> list[tuple[str, list[Verdict]]]:
    """The rows of each claim, which come one after the other."""
    return [(claim, list(rows)) for claim, rows in groupby(one.verdicts, key=lambda row: row.claim)]


def _environment() -> Environment:
    environment = page_environment(
        "bilevelbench.leaderboard", trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    environment.filters["number"] = number_text
    environment.filters["breakable"] = breakable
    environment.filters["exact"] = exact_text
    environment.filters["times"] = times
    environment.filters["formula"] = formula
    environment.filters["mood"] = mood
    environment.filters["sign"] = lambda feeling: SIGNS[feeling]
    return environment
