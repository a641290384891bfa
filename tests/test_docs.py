"""Every code block and command of README.md and docs/ is run, page by page, as a reader would (see `doc_blocks`)."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path

import pytest
from doc_blocks import LANGUAGES, Block, Failed, blocks, run_blocks

from bilevelbench.cli.app import main
from bilevelbench.results.schema import CURVE, RUNS
from bilevelbench.results.status import Status

pytestmark = pytest.mark.whole

ROOT = Path(__file__).parents[1]
PAGES = {
    str(path.relative_to(ROOT)): blocks(path, str(path.relative_to(ROOT)))
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
GUIDES = (
    "first-run", "your-method", "your-problem", "your-functions", "worked-examples", "how-calls-are-counted",
    "how-to-tune-fairly", "results-format", "how-to-submit", "clusters", "internet-scale",
)  # fmt: skip

#: What is shown and not run, by its first line, and why; the page has to say the same.
NOT_RUN = {
    ("README.md", "python3 -m venv .venv && source .venv/bin/activate && pip install -c constraints.txt ."):
        "needs the network; tests/test_readme.py installs into a fresh environment",
    ("README.md", "make run     # makes .venv, installs, runs every method on every embedded problem, prints the table, says "
     "where the page is"): "needs the network; the tests run in what it makes",
    ("README.md", "bilevelbench rates --table 1 --quick"): "takes two minutes; tests/studies/rates run it",
    ("README.md", "bilevelbench run --suite figure1 -o figure1                 # an experiment of the paper, with a verdict "
     "on its claim"): "takes minutes; tests/report and tests/studies/tuning run short forms of both",
    ("docs/first-run.md", "git clone URL bilevelbench"): "needs the network; the tests run in what it makes",
    ("docs/your-method.md", "pip install -e bilevelbench-my-method"): "installs; tests/testing/test_thirdparty.py does it",
    ("docs/how-to-tune-fairly.md", "make tuned"): "takes days on one machine",
    ("docs/how-to-tune-fairly.md", "bilevelbench tune --suite leaderboard/suites/small/second_order.toml -o search"):
        "takes minutes",
    ("docs/experiments.md", "bilevelbench tune --suite figure2 -o build/figure2/search"):
        "takes hours, and needs the data of newsgroups",
    ("docs/how-to-submit.md", "bilevelbench run --suite leaderboard/suites/deterministic.toml -a my_method.py -a f2ba -o mine"):
        "takes minutes",
    ("docs/how-to-submit.md", "bilevelbench leaderboard serve site"): "runs until it is stopped",
    ("docs/how-to-submit.md", "git checkout -b results-my-method"): "needs a clone of yours",
    ("docs/how-to-submit.md", "bilevelbench reproduce 007c29450581af9b mine"):
        "the id is one of yours; tests/studies/verification runs it",
    ("docs/clusters.md", 'pip install "bilevelbench[dask]"'): "installs; the tests have it",
    ("docs/clusters.md", "dask scheduler                                # prints its address"):
        "needs a cluster; tests/execute/test_dask.py starts one",
    ("docs/clusters.md", "# slurm_sweep.py"): "needs SLURM and dask-jobqueue",
}  # fmt: skip

#: What a page promises to leave behind: a file, and a word in it.
LEFT = {
    "README.md": ("site/index.html", "f2ba"),
    "docs/clusters.md": ("out/index.html", "f2ba"),
    "docs/first-run.md": ("out/index.html", "aid"),
    "docs/your-method.md": ("site/index.html", "my_method"),  # four commands to a row on a board
    "docs/your-problem.md": ("out/index.html", "my_problem"),
    "docs/how-to-tune-fairly.md": ("site/index.html", "tuned"),
    "docs/how-to-submit.md": ("board/index.html", "my_method"),
}


def command(arguments: list[str]) -> tuple[int, str]:
    """`bilevelbench` in this process: the same code and arguments, without importing torch again."""
    printed, argv, code = io.StringIO(), sys.argv, 0
    sys.argv = ["bilevelbench", *arguments]
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    finally:
        sys.argv = argv
    return code, printed.getvalue()


#: Pages that start clusters, search for long, train or make many documents; what they show is tested by itself.
SLOW = (
    "docs/clusters.md", "docs/first-run.md", "docs/how-to-submit.md", "docs/how-to-tune-fairly.md", "docs/internet-scale.md",
    "docs/reference/running.md", "docs/solve.md", "docs/tutorials/a-paper-from-nothing.md", "docs/tutorials/finite-sum.md",
    "docs/tutorials/mini-batches.md", "docs/tutorials/stop-by-tolerance.md", "docs/your-problem.md",
)  # fmt: skip


@pytest.mark.parametrize(
    "page",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name, found in PAGES.items() if found],
)
def test_page(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ran = list(run_blocks(PAGES[page], command))
    shown = [block for block in PAGES[page] if block.language in ("python", "bash") and not block.reason]
    assert len(ran) >= len(shown)
    if page in LEFT:
        file, word = LEFT[page]
        assert word in Path(file).read_text(encoding="utf-8")


def test_what_is_not_run():
    """A block that nobody runs is listed above, with the reason that the page gives."""
    seen = {
        (block.page, block.text.splitlines()[0]): block.reason
        for found in PAGES.values()
        for block in found
        if block.reason
    }
    assert seen == NOT_RUN


def test_no_command_hides():
    """Commands and code stand in blocks of their language, not in plain or indented ones."""
    hidden = re.compile(r"^\s*(\$ |bilevelbench [a-z]|pip install|python -m|import |from \w+ import |make \w+$)")
    for name, found in PAGES.items():
        for block in found:
            assert block.language in LANGUAGES, f"{block}: write one of {LANGUAGES} behind the fence"
            if block.language == "toml":
                assert block.file, f"{block}: name the file in the first line"
            if block.language == "text":
                for line in block.text.splitlines():
                    assert not hidden.match(line), f"{block}: {line!r} is a command; put it into a bash block"
        text = (ROOT / name).read_text(encoding="utf-8")
        outside = re.sub(r"(?ms)^ *```.*?^ *```$", "", text)
        for line in outside.splitlines():
            assert not (line.startswith("    ") and hidden.match(line)), f"{name}: {line!r} stands in an indented block"


#: Pages that are made when the site is built, from the code and from the published results (tools/site).
GENERATED = ("which-method.md", "catalogue/methods.md", "catalogue/problems.md", "reference/command-line.md")


def test_guides_are_there_and_linked():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for guide in GUIDES:
        assert (ROOT / "docs" / f"{guide}.md").is_file()
        assert f"docs/{guide}.md" in readme


@pytest.mark.parametrize("name", list(PAGES))
def test_links(name):
    """Links to files of the repository lead somewhere."""
    page = ROOT / name
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        made = (page.parent / target).resolve() in [ROOT / "docs" / name for name in GENERATED]
        shown_by_the_host = target.startswith("../../actions/")  # badges of workflows
        if "://" not in target and not made and not shown_by_the_host:
            assert (page.parent / target).exists(), f"{name} links to {target}, which is not there"


def test_thirty_lines():
    """`Your method in 30 lines` and `Your problem in 30 lines` have what their titles say."""
    for page in ("docs/your-method.md", "docs/your-problem.md"):
        for shown in (block for block in PAGES[page] if block.file.endswith(".py")):
            code = [line for line in shown.text.splitlines()[1:] if line.strip()]
            assert len(code) <= 30, f"{shown} has {len(code)} lines"


def test_results_format_is_complete():
    """Each column and each status of the tables is explained."""
    text = (ROOT / "docs" / "results-format.md").read_text(encoding="utf-8")
    for name in (*RUNS, *CURVE, *Status):
        assert f"`{name}`" in text, f"docs/results-format.md does not explain {name!r}"


def test_says_what_the_checks_are_for():
    for page in ("README.md", "docs/your-method.md", "docs/your-problem.md", "docs/how-to-submit.md"):
        text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
        assert "mistakes, not malice" in text, page


# ---------------------------------------------------------------------------------------------------- the runner itself


def page_of(tmp_path: Path, text: str) -> list[Block]:
    path = tmp_path / "page.md"
    path.write_text(text, encoding="utf-8")
    return blocks(path, "page.md")


def test_blocks_are_found(tmp_path):
    found = page_of(
        tmp_path,
        "a\n```python\n# mine.py\nx = 1\n```\n<!-- not run: too long -->\n\n```bash\nsleep 9\n```\n```bash\ntrue  # no\n```\n",
    )
    assert [(b.line, b.language, b.reason, b.file) for b in found] == [
        (2, "python", "", "mine.py"),
        (8, "bash", "too long", ""),
        (11, "bash", "", ""),
    ]


def test_a_wrong_block_fails(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AssertionError):
        list(run_blocks(page_of(tmp_path, "```python\nassert 1 == 2\n```\n"), command))
    with pytest.raises(Failed, match="ended with 2"):
        list(run_blocks(page_of(tmp_path, "```bash\nbilevelbench list nonsense\n```\n"), command))
    with pytest.raises(Failed, match="ended with 1"):
        list(run_blocks(page_of(tmp_path, "```bash\nfalse\n```\n"), command))


def test_names_live_as_long_as_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "```python\n# two.py\nx = 2\n```\n\n```python\nassert x == 2\n```\n```bash\ntest -f two.py\n```\n"
    assert len(list(run_blocks(page_of(tmp_path, text), command))) == 3
    assert "page_under_test" not in sys.modules
