"""A page for each method and each problem, and lists of both, from the registry: what `bilevelbench info` prints, typeset."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from fragments import code, docstring, table
from mathematics import equation

from bilevelbench.discovery.catalogue import Facts, catalogue, describe
from bilevelbench.discovery.registry import Registry
from bilevelbench.model.family import FAMILIES, family_of


def catalogue_pages(registry: Registry) -> Iterator[tuple[str, str]]:
    """Paths and Markdown."""
    rows = catalogue(registry)
    names = {row["name"] for kind in ("methods", "problems") for row in rows[kind]}
    yield "catalogue/methods.md", _methods(rows["methods"])
    yield "catalogue/problems.md", _problems(rows["problems"])
    for kind in ("methods", "problems"):
        for row in rows[kind]:
            yield f"catalogue/{kind}/{row['name']}.md", _page(describe(registry, row["name"]), names)


def _methods(rows: list[dict[str, Any]]) -> str:
    lines = [
        "# Methods",
        "",
        "Every registered method, by family. *Gradient* methods ask for gradients and values only; *HVP* methods also ask for "
        "products with second derivatives. A setting is named where a paper claims a rate for it.",
    ]
    for family in FAMILIES:
        mine = [row for row in rows if family_of(row["family"]) == family]
        if mine:
            cells = [
                (
                    _link("methods", row["name"]),
                    row["oracle"],
                    escape(", ".join(row["settings"]) or "none"),
                    escape(row["what"]),
                )
                for row in mine
            ]
            lines += ["", f"## {family.capitalize()}", "", table(("method", "oracle", "claims", "what it does"), cells)]
    return "\n".join(lines) + "\n"


def _problems(rows: list[dict[str, Any]]) -> str:
    cells = [(_link("problems", row["name"]), f"{equation(row['what'])}") for row in rows]
    said = "Every registered problem. [Problems and their data](../problems.md) says where the data come from."
    return f"# Problems\n\n{said}\n\n{table(('problem', 'what it is'), cells)}\n"


def _link(kind: str, name: str) -> str:
    return f'<a href="{kind}/{name}.html">{code(name)}</a>'


def _page(facts: Facts, names: set[str]) -> str:
    head, _, rest = facts.text.partition("\n")
    lines = [f"# {facts.name}", "", docstring(head, names), "", docstring(rest, names)]
    if facts.parameters:
        cells = [(code(p["name"]), code(p["default"]), escape(p["what"])) for p in facts.parameters]
        lines += ["", "## Parameters", "", table(("name", "default", "meaning"), cells)]
    if facts.uses:
        lines += ["", "## What it asks the oracle for", "", ", ".join(code(name) for name in facts.uses) + "."]
    if facts.claims:
        lines += ["", "## What is claimed", "", *(f"- {_claim(claim)}" for claim in facts.claims)]
    if facts.references:
        lines += ["", "## References", "", *(f"- {escape(reference)}" for reference in facts.references)]
    others = f"[All {facts.kind}s](../{facts.kind}s.md)"
    return (
        "\n".join(lines) + f"\n\n{code(f'bilevelbench info {facts.name}')} prints this page in a terminal. {others}.\n"
    )


def _claim(claim: dict[str, Any]) -> str:
    powers = [("n", claim["n_exp"]), ("kappa", claim["kappa_exp"]), ("eps", -claim["eps_exp"])]
    cost = " ".join(f"{base}^{exponent:.3g}" for base, exponent in powers if exponent is not None)
    cost += " log" if claim["log_power"] else ""
    cost += f"^{claim['log_power']}" if (claim["log_power"] or 1) != 1 else ""
    place = claim["setting"] if claim["table"] is None else f"table {claim['table']}, {claim['setting']}"
    source = f"; {escape(claim['reference'])}" if claim["reference"] else ""
    note = f" {escape(claim['footnote'])}".replace("*", "&#42;") if claim["footnote"] else ""  # y*, not emphasis
    return f"{escape(place)}: cost of order {equation(cost)}{source}.{note}"
