"""Numbers and formulas as text."""

from __future__ import annotations

import pytest

from bilevelbench.report.analysis.moods import SIGNS, mood
from bilevelbench.report.booktabs import escape
from bilevelbench.report.text import formula


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("ell eps^-2", "ℓ ε⁻²"),
        ("kappa^3.5", "κ³·⁵"),
        ("dx^2 eps^-4", "dₓ² ε⁻⁴"),
        ("|grad phi| below eps", "|∇φ| below ε"),
        ("grad_phi and epsilon", "grad_phi and epsilon"),  # names of columns, and words that begin alike
        ("x^y <b>", "x^y <b>"),
    ],
)
def test_powers_are_raised_and_names_are_signs(text, shown):
    assert formula(text) == shown


def test_formulas_print_in_latex():
    text = escape(formula("ell^3 eps^-1.5 kappa dx"))
    assert "U+" not in text
    assert r"$\ell$\textsuperscript{3} $\varepsilon$\textsuperscript{-}\textsuperscript{1}" in text


@pytest.mark.parametrize(
    ("word", "feeling"),
    [
        ("matches", "holds"), ("faster than claimed", "holds"), ("reproduced", "holds"), ("slower than claimed", "fails"),
        ("not reproduced", "fails"), ("tied", "open"), ("cannot be told", "open"), ("not straight", "open"), ("", "open"),
    ],
)  # fmt: skip
def test_a_verdict_has_a_sign_beside_its_colour(word, feeling):
    assert mood(word) == feeling
    assert len(set(SIGNS.values())) == 3
