"""What MkDocs calls while it builds the site: pages that are made from the code and from the published results."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from choice import choice_page
from command_line import command_line_page
from fragments import set_equations
from mkdocs.structure.files import File, Files
from names import name_table
from registered import catalogue_pages
from suite_files import suite_models

from bilevelbench.discovery.registry import registry
from bilevelbench.leaderboard.collect import load
from bilevelbench.leaderboard.site import Site

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "leaderboard" / "results" / "official"
#: Pages of the repository's root, and what the site calls them.
FROM_ROOT = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}


def on_config(config: Any) -> Any:
    """The decisions are listed as the folder has them."""
    folder = Path(config.docs_dir) / "decisions"
    for section in config.nav:
        if "Decisions" in section:
            section["Decisions"] = [f"decisions/{path.name}" for path in sorted(folder.glob("*.md"))]
    return config


def on_files(files: Files, config: Any) -> Files:
    for path, text in pages():
        files.append(File.generated(config, path, content=text))
    return files


def pages() -> list[tuple[str, str]]:
    """All generated pages, by path."""
    made = [(target, _moved((ROOT / source).read_text(encoding="utf-8"))) for source, target in FROM_ROOT.items()]
    made += [("reference/command-line.md", command_line_page()), ("which-method.md", which_method())]
    return [*made, *catalogue_pages(registry())]


def which_method() -> str:
    folders = sorted(path for path in RESULTS.iterdir() if path.is_dir() and path.name != "facts")
    site = Site(load([RESULTS / "facts", *folders]), "make page")
    boards, tuned = (
        {board.setting: board.rows for board in site.boards if board.mode == mode} for mode in ("default", "tuned")
    )
    trials = len(site.runs)
    lead = (
        f"The numbers are those of the published results, {trials:,} trials of {len(site.methods)} methods on "
        f"{len(site.titles)} problems; the tables show default parameters. A *goal* is to bring |grad phi| (on the last "
        "board, the smallest eps for which a point is second-order stationary) in one trial down to a given share of its "
        "start. There are twelve such shares, from 10^-0.5 to 10^-6. *Reached* is the share of goals that were "
        "reached. *Cost / best* is the cost over that of the best method, in the median over problems and accuracies, with a "
        "Hessian-vector product at the price of one gradient. A rank comes with an interval, in which it lies if problems "
        "and trials are drawn again."
    )
    return choice_page(boards, site.kinds, lead, tuned)


def _moved(text: str) -> str:
    """Links of a page that moves from the root of the repository into docs/."""
    return re.sub(r"\]\(docs/", "](", text)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Indented blocks are equations, and marks stand for what is made here: the board is linked where it was built."""
    markdown = set_equations(markdown)
    page.meta.setdefault("search", {"boost": _weight(page.file.src_uri)})
    board = Path(config.site_dir).parent / "index.html"
    link = '<a href="../index.html">The board of the published results</a>' if board.is_file() else ""
    for mark, made in (("board", lambda: link), ("names", name_table), ("suite models", suite_models)):
        if f"<!-- {mark} -->" in markdown:
            markdown = markdown.replace(f"<!-- {mark} -->", made())
    return markdown


def _weight(path: str) -> float:
    """How far up the search lists a page: what explains a name before the reasons for it and the history."""
    if path.startswith(("reference/", "tutorials/")):
        return 2
    return 0.4 if path.startswith(("decisions/", "changelog", "paper-errata")) else 1


def on_post_page(output: str, page: Any, config: Any) -> str:
    """The theme's search is a dialog without a name, which those who cannot see it need."""
    return output.replace('role="dialog"', 'role="dialog" aria-label="Search"')
