"""How figures look, and how they are written."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import LogFormatter

from bilevelbench.errors import StoreError
from bilevelbench.model.family import Family, family_of
from bilevelbench.report.analysis.moods import Mood
from bilevelbench.report.text import raised

#: Becomes `currentColor`: axes and words take the colour of the page, light or dark.
INK = "#010203"

#: One colour per family, as on the site: dark enough for words, and apart for the colour-blind.
COLOURS: dict[Family, str] = {
    "penalty": "#0072b2", "implicit": "#c75300", "unrolled": "#00815f", "zeroth-order": "#6b6b6b", "other": "#a84a80",
}  # fmt: skip

#: Of words of verdicts, each of which has a sign too.
VERDICTS: dict[Mood, str] = {"holds": "#00704f", "fails": "#b3261e", "open": "#5f6368"}

_LINES, _MARKERS = ("-", "--", ":", "-."), "osD^vPX<>"

#: So many lines of a figure have a colour and a name; more cannot be told apart, and a legend of hundreds is not read.
MOST = 12
_GREY = 200

Look = dict[str, Any]


def looks(methods: Sequence[str], families: Mapping[str, str] | None = None) -> dict[str, Look]:
    """Colour, line and marker by method, so that it looks the same in every figure of a page.

    A family has one colour, and lines and markers tell its methods apart. Where no family is known, colours do too.
    """
    names = sorted(methods)
    known = {name: family_of((families or {}).get(name, "")) for name in names}
    if set(known.values()) <= {"other"}:
        import seaborn as sns  # with scipy.stats it takes a third of a second to import

        colours = [c for c in sns.color_palette("colorblind").as_hex() if c != "#fbafe4"]  # pale pink is lost on paper
        styles = list(product(_LINES, colours))
        return {
            name: _look(styles[n % len(styles)][1], styles[n % len(styles)][0], _MARKERS[n % len(_MARKERS)])
            for n, name in enumerate(names)
        }
    out, seen = {}, dict.fromkeys(COLOURS.values(), 0)
    for name in names:
        colour = COLOURS[known[name]]
        n = seen[colour]
        seen[colour] += 1
        out[name] = _look(colour, _LINES[n % len(_LINES)], _MARKERS[n % len(_MARKERS)])  # 4 and 9: 36 pairs
    return out


def despine(figure: Figure | SubFigure) -> None:
    """Axes with a left and a bottom line only."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)


def svg(figure: Figure, prefix: str = "") -> str:
    """For a page: in its colours, with ids of its own, without the XML head, and without styles, which its policy forbids.

    A colour with a meaning is `var(--penalty, #0072b2)`: the page may have another one in the dark.
    """

    def adapt(tag: re.Match[str]) -> str:  # only inside of tags: a method's name stays as it is
        coloured = re.sub("#[0-9a-f]{6}", lambda colour: _MEANINGS.get(colour[0], colour[0]), tag[0])
        own = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{prefix}", coloured)
        return re.sub(r'\bstyle="([^"]*)"', lambda style: _attributes(style[1]), own)

    text = _svg(figure, transparent=True)
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text[text.index("<svg") :], count=1, flags=re.DOTALL)
    return re.sub(r"<[^<>]+>", adapt, text.replace("<svg ", '<svg stroke-linejoin="round" ', 1))


_MEANINGS = {INK: "currentColor"} | {
    colour: f"var(--{name}, {colour})" for name, colour in (*COLOURS.items(), *VERDICTS.items())
}


def _attributes(style: str) -> str:
    """`fill: none; stroke: red` as `fill="none" stroke="red"`: what matplotlib sets are all names of attributes too."""
    pairs = (part.partition(":") for part in style.split(";") if part.strip())
    return " ".join(f'{name.strip()}="{value.strip()}"' for name, _, value in pairs)


def svg_file(figure: Figure) -> str:
    """For a file of its own: on white."""
    return _svg(figure, facecolor="white")


def _write(figure: Figure, file: Any, **options: Any) -> None:
    for axis in (axis for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)):
        if axis.get_scale() == "log":
            axis.set_major_formatter(_Powers())
            axis.set_minor_formatter(_Powers(labelOnlyBase=False))
    with settings():
        if (engine := figure.get_layout_engine()) is not None:
            # Once, and not by drawing everything an extra time for each kind of file, as savefig does.
            engine.execute(figure)
            figure.set_layout_engine("none")
        figure.savefig(file, **options)


def save(figure: Figure, stem: Path, kinds: Sequence[str] = ("svg", "png")) -> list[Path]:
    """Write `stem`.svg and `stem`.png, or the kinds that are wanted; the same figure is the same file."""
    made = {stem.with_name(f"{stem.name}.{kind}"): figure_file(figure, kind) for kind in kinds}
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        for path, content in made.items():
            path.write_bytes(content)
    except OSError as error:
        raise StoreError(f"cannot write the figure {stem}: {error.strerror}; choose another folder with -o") from None
    return list(made)


def figure_file(figure: Figure, kind: str) -> bytes:
    """The bytes of a file: the same figure is the same file."""
    if kind == "svg":
        return svg_file(figure).encode()
    picture, undated = io.BytesIO(), {"metadata": {"CreationDate": None}} if kind == "pdf" else {}
    _write(figure, picture, format=kind, dpi=160, facecolor="white", **undated)
    return picture.getvalue()


@dataclass(frozen=True)
class Shown:
    """Which lines a figure has in colour and which thin and grey; `note` says so where some are not in colour."""

    coloured: list[str]
    grey: list[str]
    note: str


def chosen(ranked: Sequence[str]) -> Shown:
    """The first `MOST` in colour, by name, and of the others at most `_GREY`, evenly over their order."""
    others = ranked[MOST:]
    grey = [others[i * len(others) // _GREY] for i in range(_GREY)] if len(others) > _GREY else list(others)
    left_out = f", {len(others) - len(grey):,} are not drawn" if len(grey) < len(others) else ""
    note = f"the best {MOST} of {len(ranked):,}\n{len(grey):,} others in grey{left_out}" if others else ""
    return Shown(sorted(ranked[:MOST]), grey, note)


def draw_grey(axes: Axes, lines: Sequence[tuple[np.ndarray, np.ndarray]], steps: bool = False) -> None:
    """Lines without names, behind those that have one."""
    if steps:
        lines = [(np.repeat(at, 2)[1:], np.repeat(values, 2)[:-1]) for at, values in lines]
    if lines:
        drawn = [np.column_stack(line) for line in lines]
        axes.add_collection(LineCollection(drawn, colors="#949494", linewidths=0.5, alpha=0.5, zorder=1))


def legend(axes: Axes, lines: Sequence[Any], names: Sequence[str], title: str = "") -> None:
    """At the right of the axes, by name; a dollar or underscore in a name is itself."""
    numbers = [str(n) for n in range(len(lines))]  # a name with a leading underscore would be left out
    place: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "title": title or None}
    box = axes.legend(lines, numbers, frameon=False, fontsize=8, **place)
    for text, name in zip(box.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(name if len(name) <= 40 else name[:39] + "…")


def _look(colour: str, line: str, marker: str) -> Look:
    return {"color": colour, "linestyle": line, "marker": marker}


class _Powers(LogFormatter):
    """10⁻³ as plain text: matplotlib's own way sets it as a formula, which takes half of the time of a figure."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        if not super().__call__(x, pos):  # it decides which ticks have a label
            return ""
        digit, _, power = f"{x:.0e}".partition("e")
        return ("" if digit == "1" else f"{digit}·") + "10" + raised(str(int(power)))


@contextmanager
def settings() -> Iterator[None]:
    inked = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color")
    fonts: Any = {"svg.hashsalt": "bilevelbench", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9}
    with warnings.catch_warnings(), matplotlib.rc_context(fonts | dict.fromkeys(inked, INK)):
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the browser has more fonts
        yield


def _svg(figure: Figure, **options: Any) -> str:
    text = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    _write(figure, text, format="svg", metadata=nothing, **options)
    return text.getvalue()
