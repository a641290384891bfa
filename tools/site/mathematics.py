"""Equations of docstrings, `y <- y - a_y (f_y(x, y)/lam + g_y(x, y))`, as MathML: no script, no font, nothing lost.

The docstrings stay what a terminal can print. A segment is what two or more spaces separate from the next one; words in it
stay words, and names, indices, powers and operators are set as mathematics.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from html import escape

GREEK = {
    "alpha": "α", "beta": "β", "gam": "γ", "gamma": "γ", "delta": "δ", "Delta": "Δ", "eps": "ε", "zeta": "ζ", "eta": "η",
    "theta": "θ", "kappa": "κ", "lam": "λ", "mu": "μ", "nu": "ν", "xi": "ξ", "rho": "ρ", "sigma": "σ", "sig": "σ",
    "tau": "τ", "phi": "φ", "psi": "ψ", "ell": "ℓ", "grad": "∇", "sum": "∑", "sqrt": "√",
}  # fmt: skip
FUNCTIONS = {
    "argmin", "ceil", "cos", "cosh", "diag", "exp", "log", "log2", "max", "mean", "min", "sech", "sin", "spec", "sup", "tanh",
}  # fmt: skip
#: A matrix times a vector, or a dimension, written without a space.
_PRODUCT = re.compile(r"[A-Z][a-z]|[a-z][A-Z]|d[xy]")
OPERATORS = {"<-": "←", "->": "→", "<=": "≤", ">=": "≥", "-": "−", "~": "∼", "..": "…", "...": "…"}
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻ᵀ", "0123456789−T")

_TOKEN = re.compile(
    r"(?P<code>`[^`]+`)|(?P<space>\s+)|(?P<hyphened>[A-Za-z]{2,}(?:-[A-Za-z]{2,})+)|(?P<number>\d[\d,]*\.?\d*(?<!,)(?<!\.))"
    r"|(?P<name>(?:[A-Za-z]+|[^\W\d_ᵀ])'*)|(?P<below>_(?:\{[^}]*\}|[^\W_]+))"
    r"|(?P<above>\^(?:\{[^}]*\}|\([^)]*\)|-?[^\W_]+(?:/\d+)?))|(?P<raised>[⁰¹²³⁴⁵⁶⁷⁸⁹⁻ᵀ]+)|(?P<star>\*)"
    r"|(?P<operator><-|->|<=|>=|\.\.\.?|.)"
)


def equation(text: str, names: Collection[str] = ()) -> str:
    """One segment as HTML: `<math>`, or plain words where there is nothing to set. `names` are set as code."""
    if text in names:
        return f"<code>{escape(text)}</code>"
    if _is_prose(text):
        return f"<span>{escape(text)}</span>"
    return f"<math>{_row(text)}</math>"


def equations(lines: list[str], names: Collection[str] = ()) -> str:
    """A block of equations: one row per line, indented as there, its segments side by side while there is room."""
    least = min(len(line) - len(line.lstrip()) for line in lines)
    rows = []
    for line in lines:
        indent = len(line) - len(line.lstrip()) - least
        cells = "".join(f"<span>{equation(part, names)}</span>" for part in re.split(r"\s{2,}", line.strip()))
        rows.append(f'<div style="padding-left:{indent / 2:g}em">{cells}</div>')
    return f'<div class="equations" tabindex="0">{"".join(rows)}</div>'


def _is_prose(text: str) -> bool:
    words = re.findall(r"[A-Za-z]{3,}", text)
    plain = [word for word in words if word not in GREEK and word not in FUNCTIONS]
    return not re.search(r"[_^=<>|*/²ᵀ]", text) and len(plain) > 1


def _row(text: str) -> str:
    """The tokens of one segment; an index or a power takes the element before it."""
    out: list[str] = []
    spaced = False  # whether a space stood before this token
    before = ""  # the kind of the token before
    for kind, token in _tokens(text):
        if kind == "space":
            spaced = True
            continue
        if kind in ("below", "above", "raised") or (kind == "star" and not spaced and before in ("name", "below")):
            base = out.pop() if out else "<mrow></mrow>"
            out.append(_attached(kind, token, base))
        else:
            words = "word" in (before, kind)
            if spaced and out and (words or (before not in ("operator", "") and kind != "operator")):
                out.append(f'<mspace width="{0.35 if words else 0.17}em"></mspace>')
            out.append(
                _element(kind, token, prefix=before in ("", "operator") and not (out and out[-1].endswith(">)</mo>")))
            )
        before, spaced = kind, False
    return f"<mrow>{''.join(out)}</mrow>"


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    for match in _TOKEN.finditer(text):
        kind, token = str(match.lastgroup), match[0]
        if kind == "hyphened" or (kind == "name" and _is_word(token)):
            kind = "word"
        yield kind, token


def _is_word(token: str) -> bool:
    return (
        len(token.rstrip("'")) > 1 and token not in GREEK and token not in FUNCTIONS and not _PRODUCT.fullmatch(token)
    )


def _attached(kind: str, token: str, base: str) -> str:
    if kind == "star":
        return f"<msup>{base}<mo>*</mo></msup>"
    if kind == "raised":
        return f"<msup>{base}<mtext>{token.translate(_RAISED)}</mtext></msup>"
    inside = token[1:]
    if inside[0] + inside[-1] in ("{}", "()"):
        inside = inside[1:-1]
    return f"<m{'sub' if kind == 'below' else 'sup'}>{base}{_row(inside)}</m{'sub' if kind == 'below' else 'sup'}>"


def _element(kind: str, token: str, prefix: bool) -> str:
    if kind == "code":
        return f"<mtext><code>{escape(token[1:-1])}</code></mtext>"
    if kind == "word":
        return f"<mtext>{escape(token)}</mtext>"
    if kind == "number":
        return f"<mn>{token}</mn>"
    if kind == "name":
        if _PRODUCT.fullmatch(token):
            return "<mrow>" + "".join(f"<mi>{letter}</mi>" for letter in token) + "</mrow>"
        shown = GREEK.get(token, token)
        tag = "mo" if shown in "∇∑√" else "mi"
        return f"<{tag}>{escape(shown)}</{tag}>"
    sign = OPERATORS.get(token, token)
    form = ' form="prefix"' if prefix and token in "-+" else ""
    tight = ' lspace="0" rspace="0"' if token in "|‖/" else ""
    return f'<mo stretchy="false"{form}{tight}>{escape(sign)}</mo>'
