"""The pages that are made from the code: mathematics, the recommendation, the names, the command line."""

from __future__ import annotations

import itertools
import re
import sys
from html import unescape
from pathlib import Path

import pandas as pd
import pytest

import bilevelbench

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools" / "site"))

from choice import advice, choice_page, tuned_advice  # noqa: E402
from command_line import command_line_page, examples, verbs  # noqa: E402
from fragments import docstring, set_equations  # noqa: E402
from mathematics import GREEK, equation, equations  # noqa: E402
from names import ENTRY, about, explained, name_table  # noqa: E402
from registered import catalogue_pages  # noqa: E402
from suite_files import MODELS, suite_models  # noqa: E402

from bilevelbench.cli.app import parser  # noqa: E402
from bilevelbench.discovery.catalogue import describe  # noqa: E402
from bilevelbench.discovery.registry import registry  # noqa: E402

pytestmark = pytest.mark.whole  # every method and problem

# ---- mathematics


def test_an_equation_has_arrows_indices_powers_and_greek():
    made = equation("y <- y - a_y (f_y(x, y)/lam + H^-1 v)")
    for part in ('<mo stretchy="false">←</mo>', "<msub><mi>a</mi><mrow><mi>y</mi></mrow></msub>", "<mi>λ</mi>"):
        assert part in made
    assert re.search(r"<msup><mi>H</mi><mrow><mo[^>]*>−</mo><mn>1</mn></mrow></msup>", made)


def test_a_star_is_raised_behind_a_name_only():
    assert "<msup><msub><mi>y</mi><mrow><mi>λ</mi></mrow></msub><mo>*</mo></msup>" in equation("y_lam*(x) = 1")
    assert "<msup>" not in equation("2 * x = 1")


def test_words_stay_words_and_names_of_plugins_are_code():
    assert equation("fresh samples everywhere") == "<span>fresh samples everywhere</span>"
    assert "<mtext>follows</mtext>" in equation("y follows y*(x)")
    assert equation("logreg_digits", {"logreg_digits"}) == "<code>logreg_digits</code>"


def _signs(text: str) -> str:
    """What has to survive: letters and digits, Greek ones as signs."""
    return "".join(filter(str.isalnum, re.sub(r"[A-Za-z]+", lambda word: GREEK.get(word[0], word[0]), text)))


@pytest.mark.parametrize("name", ["f2ba", "f3bsa", "soba", "pzobo", "prahgd", "saba"])
def test_nothing_of_an_equation_is_lost(name):
    text = sys.modules[registry().algorithms[name].value.__module__].__doc__
    lines = [line for line in text.splitlines() if line.startswith("    ")]
    shown = unescape(re.sub(r"<[^>]*>", " ", equations(lines)))
    assert _signs(shown) == _signs("\n".join(lines))


def test_a_docstring_is_paragraphs_and_equations():
    made = docstring("Text with `code` & more.\n\n    x <- x - b d\n\nThe end.", ())
    assert "<p>Text with <code>code</code> &amp; more.</p>" in made
    assert made.count('class="equations"') == 1


def test_of_a_page_the_indented_blocks_alone_are_equations():
    page = "# T\n\nFirst\n\n    x <- x - b d\n    y <- y\n\n![p](q.png)\n\n- one\n\n    still one\n\nText\n\n"
    code = "```python\n\n    def f():\n\n```\n\n1. Do\n\n    ```bash\n    ls\n    ```\n\nLast\n\n    z = 1\n"
    made = set_equations(page + code)
    assert made.count('class="equations"') == 2
    assert re.sub(r'<div class="equations".*', "@", made) == (page + code).replace(
        "    x <- x - b d\n    y <- y\n", "@\n"
    ).replace("    z = 1\n", "@\n")


def test_the_pages_of_the_guides_lose_nothing_but_their_equations():
    for path in sorted((ROOT / "docs").rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        kept = [line for line in text.splitlines() if not line.startswith("    ")]
        made = [line for line in set_equations(text).splitlines() if not line.startswith(("    ", '<div class="eq'))]
        assert made == kept, path.name


# ---- the recommendation


def board(*rows: tuple[str, str, float, float, str]) -> pd.DataFrame:
    """(method, oracle, share reached, cost over best, bands), best first."""
    table = pd.DataFrame(rows, columns=["method", "oracle", "reached", "relative", "bands"])
    return table.assign(
        algorithm=table["method"], attempts=10, solved=(10 * table["reached"]).astype(int), trials=10, failed=0,
        rank=range(1, len(table) + 1), low=1, high=len(table),
    )  # fmt: skip


def test_the_best_is_recommended_with_who_ties_and_what_gradients_alone_cost():
    said = advice(board(("a", "HVP", 0.8, 1.0, "a"), ("b", "HVP", 0.8, 1.1, "a"), ("c", "gradient", 0.4, 3.0, "b")))
    assert "Begin with <code>a</code>" in said
    assert "8 of 10" in said
    assert "cannot tell <code>b</code> apart" in said
    assert "only gradients, the first is <code>c</code>, which reached 4 of 10" in said
    assert "3 times the cost" in said


def test_nothing_is_recommended_where_nothing_was_reached():
    nothing = float("inf")
    said = advice(board(("a", "HVP", 0.0, nothing, "a"), ("b", "HVP", 0.0, nothing, "a")))
    assert "Begin with" not in said
    assert "No method of this board reached any accuracy" in said
    said = advice(board(("a", "HVP", 0.0, nothing, "a"), ("b", "HVP", 0.1, nothing, "a")))
    assert "<code>b</code> reached most, 1 of 10" in said


def test_a_first_order_winner_is_not_praised_twice():
    said = advice(board(("a", "gradient", 0.8, 1.0, "a"), ("b", "HVP", 0.8, 1.5, "b")))
    assert "only gradients" not in said
    assert "apart" not in said


def test_many_ties_are_counted():
    said = advice(board(*((name, "HVP", 0.8, 1.0, "a") for name in "abcdefghijkl")))
    assert "cannot tell <code>b</code>, <code>c</code>, <code>d</code> and 8 others apart" in said


def test_the_tuned_board_has_a_sentence_of_its_own():
    said = tuned_advice(
        board(("a", "HVP", 0.8, 1.0, "a"), ("b", "HVP", 0.8, 1.1, "a"), ("c", "gradient", 0.4, 3.0, "b"))
    )
    assert "mean rank is that of <code>a</code>, which reached 8 of 10 goals" in said
    assert "cannot tell <code>b</code> apart" in said
    said = tuned_advice(board(("a", "HVP", 0.0, float("inf"), "a")))
    assert "no method reached any accuracy" in said


def test_the_page_has_a_table_for_each_board():
    rows = board(("aid", "HVP", 0.8, 1.0, "a")).drop(columns="oracle")
    page = choice_page({"deterministic": rows, "full": rows}, {"aid": {"oracle": "HVP"}}, "lead", {"full": rows})
    assert page.count("<table>") == 2
    assert page.count("With [tuned parameters]") == 1
    assert "## Deterministic" in page
    assert 'href="catalogue/methods/aid.html"' in page


# ---- names, suites, command line, catalogue


def test_every_public_name_is_explained_with_an_example():
    """A name has one entry in docs/reference, and below it, before the next one, a block of code that uses it."""
    assert set(explained()) == set(bilevelbench.__all__)
    for path in sorted((ROOT / "docs" / "reference").glob("*.md")):
        found = list(ENTRY.finditer(path.read_text(encoding="utf-8")))
        for match, after in itertools.pairwise([*found, None]):
            below = match.string[match.end() : after.start() if after else None]
            shown = "\n".join(re.findall(r"(?ms)^```python\n(.*?)^```$", below))
            name = (match[1] or match[2]).removeprefix("bilevelbench.")
            assert re.search(rf"\b{name}\b", shown), f"{path.name} explains {name} without an example"


def test_every_public_name_has_a_first_sentence():
    for name in bilevelbench.__all__:
        assert about(name), f"{name} has no docstring"
    assert name_table().count("<tr>") == len(bilevelbench.__all__) + 1


def test_every_table_of_a_suite_is_explained():
    text = suite_models()
    for name, model in MODELS.items():
        assert f"### {name}" in text
        for field in model.model_fields:
            assert f"<code>{field}</code>" in text


def test_the_command_line_has_every_verb_and_option():
    page = command_line_page()
    for path, verb in verbs(parser()):
        assert examples(verb), f"{path} has no example"
        assert f"## {path.removeprefix('bilevelbench ')}\n" in page
        for parameter in verb.params:
            for name in parameter.opts:
                if name.startswith("-"):
                    assert f"<code>{name}</code>" in page, f"{path} {name}"


@pytest.mark.parametrize("name", [*registry().algorithms, *registry().problems])
def test_every_parameter_says_what_it_means(name):
    assert [parameter["name"] for parameter in describe(registry(), name).parameters if not parameter["what"]] == []


def test_every_method_and_problem_has_a_page():
    made = dict(catalogue_pages(registry()))
    for name in registry().algorithms:
        assert f"catalogue/methods/{name}.md" in made
        assert f'href="methods/{name}.html"' in made["catalogue/methods.md"]
    for name in registry().problems:
        assert f"catalogue/problems/{name}.md" in made
    assert made["catalogue/methods/f2ba.md"].count("<math>") > 4
    assert "## Parameters" in made["catalogue/problems/quadratic.md"]
