"""What the pages of the site share: the trials, their boards and tables, and how each method is drawn and linked."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from bilevelbench.leaderboard.boards import make_board
from bilevelbench.leaderboard.clock import TIMED
from bilevelbench.leaderboard.collect import MODES, Material, provenance
from bilevelbench.leaderboard.facts import method_facts
from bilevelbench.leaderboard.fragments import median_hvp_ratio
from bilevelbench.leaderboard.links import NO_LINKS, Links
from bilevelbench.leaderboard.names import paper_facts, paper_name
from bilevelbench.leaderboard.settings import SETTINGS, budgets, sampled, settings_of_trials
from bilevelbench.model.family import family_of
from bilevelbench.report.analysis.failures import failures
from bilevelbench.report.analysis.summary import summary, titled
from bilevelbench.report.text import printable
from bilevelbench.results import reached
from bilevelbench.results.schema import Results, runs_frame
from bilevelbench.results.verified import mark
from bilevelbench.untrusted import slug


class Site:
    """The material of the site, worked out once for all pages."""

    def __init__(self, material: Material, command: str, links: Links = NO_LINKS) -> None:
        self.material, self.command, self.links = material, command, links
        self.results = results = {mode: r for mode, r in material.results.items() if not r.runs.empty}
        self.runs = pd.concat(
            [
                titled(r.runs).assign(mode=mode, setting=settings_of_trials(r, material.facts).to_numpy())
                for mode, r in results.items()
            ]
            or [titled(runs_frame([])).assign(mode="", setting="")],
            ignore_index=True,
        )
        self.origin = provenance(*results.values())
        self.titles = list(dict.fromkeys(sorted(self.runs["title"])))
        self.methods = sorted(set(self.runs["method"]))
        self.problem_file = {title: f"problem/{slug(title)}.html" for title in self.titles}
        self.method_file = {method: f"method/{slug(method)}.html" for method in self.methods}
        self.kinds = self._kinds()
        self.looks = self._looks()
        self.ratio = median_hvp_ratio(material.facts)
        self.settings = {
            title: [name for name in SETTINGS if name in set(group)]
            for title, group in self.runs.groupby("title")["setting"]
        }
        oracles = {method: kind["oracle"] for method, kind in self.kinds.items()}
        self.boards = [
            make_board(part, mode, setting, self._titles(mode, setting), self.ratio, oracles)
            for (mode, setting), part in self._parts()
        ]
        self.parts = {(one.mode, one.setting): one.results for one in self.boards}
        # what a page of a problem needs, cut in one go: each would go through all trials otherwise
        self.title_of = dict(zip(self.runs["trial_id"], self.runs["title"], strict=True))
        self.on_problem = {key: part.grouped(self.title_of) for key, part in self.parts.items()}
        # of the results as they came: a board by the clock has lost what tells samples from calls
        self.budgets = {key: budgets(results[key[0]], part.runs["trial_id"]) for key, part in self.parts.items()}
        self.paid = {
            (mode, setting): "seconds" if mode == TIMED else "samples" if sampled(part) else "calls"
            for (mode, setting), part in self.parts.items()
        }
        self.tables = {key: summary(part) for key, part in self.parts.items()}
        behind = self.runs.groupby(["mode", "setting", "title", "method"])["trial_id"]
        self._trials: dict[Any, list[str]] = {key: list(ids) for key, ids in behind}
        self.failures = self._failures()
        self.environments = self._environments()

    def drawn(self) -> dict[str, Results]:
        """The results for figures: phi is there its distance from the smallest phi of a sound trial on the problem.

        Taken before numbers are rounded for a page: the last digits of phi are where methods differ.
        """
        where = self.title_of
        sound = set(self.runs.loc[~reached.failed(self.runs), "trial_id"])
        least: dict[str, float] = {}
        for one in self.results.values():
            seen = one.curve[one.curve["trial_id"].isin(sound) & np.isfinite(one.curve["phi"].astype(float))]
            for trial, phi in seen.groupby("trial_id")["phi"].min().items():
                least[where[str(trial)]] = min(phi, least.get(where[str(trial)], np.inf))
        base = {trial: least.get(title, np.nan) for trial, title in where.items()}
        return {
            mode: replace(
                one, curve=one.curve.assign(phi=one.curve["phi"] - one.curve["trial_id"].map(base).astype(float))
            )
            for mode, one in self.results.items()
        }

    def _kinds(self) -> dict[str, dict[str, str]]:
        """Family, oracle kind and paper of each method: as declared, or the oracle as the meter saw it."""
        out = {}
        for method, group in self.runs.groupby("method"):
            algorithm = str(group["algorithm"].iloc[0])
            fact = self.fact(str(method), algorithm)
            seen = "HVP" if (group["second_order"] > 0).any() else "gradient"
            oracle = fact["oracle"]
            family = str(fact["family"])
            out[str(method)] = {
                "algorithm": algorithm,
                "oracle": oracle if oracle in ("gradient", "HVP") else seen,
                "declared": "yes" if oracle in ("gradient", "HVP") else "",
                "family": family_of(family),
                "family_name": family or "not declared",
                "title": printable(paper_name(str(method), algorithm, str(fact["title"]))),
                "source": str(fact["source"]),
                **paper_facts(fact),
            }
        return out

    def fact(self, method: str, algorithm: str) -> dict[str, Any]:
        """What the plugin says of a method; blanks for a stranger that has the name of one that is described."""
        return method_facts({} if method in self.material.foreign else self.material.facts, algorithm)

    @property
    def measured(self) -> bool:
        """Whether there are measured rates to show."""
        return any(table.rows for table in self.material.rates)

    def trials(self, mode: str, setting: str, title: str, method: str) -> list[str]:
        """The trials behind a row of a table, by id."""
        return self._trials[mode, setting, title, method]

    def again(self, trials: Sequence[str]) -> dict[str, str]:
        """Whether these trials were verified, and the command that runs the first of them again."""
        place = self.material.places.get(trials[0], "")
        command = shlex.join(["bilevelbench", "reproduce", trials[0], *([place] if place else [])])
        return {"mark": mark(trials, self.material.verdicts), "command": printable(command)}

    def _looks(self) -> dict[str, dict[str, Any]]:
        """Colour by family; dash and marker tell the methods of a family apart."""
        count: Counter[str] = Counter()
        out = {}
        for method in self.methods:
            family = self.kinds[method]["family"]
            out[method] = {
                "family": family, "dash": count[family] % 4, "marker": count[family] % 5,
                "title": self.kinds[method]["title"],
            }  # fmt: skip
            count[family] += 1
        return out

    def _parts(self) -> Iterator[tuple[tuple[str, str], Results]]:
        """The trials of each mode and setting."""
        for mode, setting in ((m, s) for m in self.results for s in SETTINGS):
            mine = self.runs[(self.runs["mode"] == mode) & (self.runs["setting"] == setting)]
            if not mine.empty:
                yield (mode, setting), self.results[mode].only(mine["trial_id"])

    def _titles(self, mode: str, setting: str) -> list[str]:
        mine = self.runs[(self.runs["mode"] == mode) & (self.runs["setting"] == setting)]
        return sorted(set(mine["title"]))

    def kind_of(self, title: str) -> str:
        """`deterministic`, or `deterministic and second-order` for a problem on two boards."""
        return " and ".join(SETTINGS[name].name for name in self.settings[title])

    def _failures(self) -> list[dict[str, Any]]:
        """One row for all trials of a method on a problem that failed alike; each with its sentence."""
        table = failures(self.runs, "mode")
        return table.assign(mode=table["mode"].map(MODES)).to_dict("records")  # type: ignore[return-value]

    def _environments(self) -> list[dict[str, Any]]:
        """Where the trials of each method were run, and how many there."""
        keys = ("date", "commit", "cpu", "cores", "python", "torch", "version", "from")
        unknown = dict.fromkeys(keys, "")
        counts: Counter[tuple[str, ...]] = Counter()
        for trial_id, name in zip(self.runs["trial_id"], self.runs["method"], strict=True):
            for origin in self.origin.get(trial_id, [unknown]):
                counts[(name, *(origin[key] for key in keys))] += 1
        return [
            {"method": key[0], **dict(zip(keys, key[1:], strict=True)), "trials": n}
            for key, n in sorted(counts.items())
        ]
