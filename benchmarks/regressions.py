"""The ratios of this run beside the stored ones of the last release; a ratio that got worse by more than 15 percent fails.

python benchmarks/regressions.py            prints the table; exit code 1 if something got worse
python benchmarks/regressions.py --store    keeps the ratios of this run: for a release, measured on a quiet machine
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
SUMMARY, STORED = FOLDER / "summary.json", FOLDER / "stored.json"

#: A ratio may be so much worse than the stored one. Beside other work ratios differ by more from one run to the next.
ALLOWED = 0.15
#: What one wants large; everything else is a cost.
_GAIN = "_speedup"
#: What comes on top of something that counts as one: compared with that one, since a share of nearly nothing has no ratio.
_ON_TOP = ("_share", "_overhead", "_growth")
#: What is no ratio: it says as much about the machine as about us, and fails nothing.
_OF_A_MACHINE = ("_seconds", "_mib")


@dataclass(frozen=True)
class Row:
    """A ratio, and by which factor it is worse than the stored one; None where there is nothing to compare."""

    name: str
    stored: float | None
    now: float | None
    factor: float | None

    @property
    def verdict(self) -> str:
        if self.factor is None and None not in (self.stored, self.now):
            return "not compared"
        if self.factor is None:
            return "new" if self.stored is None else "not measured"
        return "worse" if not self.factor <= 1 + ALLOWED else "better" if self.factor < 1 - ALLOWED else "as before"


def compare(now: Mapping[str, float], stored: Mapping[str, float]) -> list[Row]:
    """One row per ratio of either side, by name."""
    return [_row(name, stored.get(name), now.get(name)) for name in sorted({*now, *stored})]


def _row(name: str, stored: float | None, now: float | None) -> Row:
    if stored is None or now is None or name.endswith(_OF_A_MACHINE):
        return Row(name, stored, now, None)
    before, after = _cost(name, stored), _cost(name, now)
    return Row(name, stored, now, after / before if math.isfinite(after) else math.inf)


def _cost(name: str, value: float) -> float:
    if name.endswith(_GAIN):
        return 1 / value if value > 0 else math.inf
    return 1 + value if name.endswith(_ON_TOP) else value


def table(rows: list[Row]) -> str:
    width = max((len(row.name) for row in rows), default=0)
    lines = [f"{'ratio':{width}}  {'stored':>8}  {'now':>8}  change"]
    for row in rows:
        change = "" if row.factor is None else f"{100 * (row.factor - 1):+.0f}% "
        lines.append(f"{row.name:{width}}  {_text(row.stored):>8}  {_text(row.now):>8}  {change}{row.verdict}")
    return "\n".join(lines)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


def read(path: Path) -> dict[str, float]:
    """Ratios by name; none where the file is missing."""
    return {str(name): float(value) for name, value in json.loads(path.read_text()).items()} if path.exists() else {}


def main(arguments: list[str] | None = None, summary: Path = SUMMARY, kept: Path = STORED) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", action="store_true", help="keep the ratios of this run as those of the release")
    given = parser.parse_args(arguments)
    now, stored = read(summary), read(kept)
    if not now:
        print(f"{summary} has no ratios; measure them first: make bench", file=sys.stderr)
        return 1
    if given.store:
        kept.write_text(json.dumps({**stored, **now}, indent=2, sort_keys=True) + "\n")
        print(f"{len(now)} ratios are kept in {kept}")
        return 0
    rows = compare(now, stored)
    print(table(rows))
    worse = [row.name for row in rows if row.verdict == "worse"]
    if worse:
        print(
            f"worse by more than {ALLOWED:.0%}: {', '.join(worse)}; measure again on a quiet machine, and mend what stays "
            "or keep it with `python benchmarks/regressions.py --store`",
            file=sys.stderr,
        )
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
