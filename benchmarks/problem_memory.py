"""Peak memory of the problems on the largest data, at full size.

    python benchmarks/problem_memory.py              all of them, the table of docs/problems.md
    python benchmarks/problem_memory.py newsgroups   these

Each has a process of its own, which builds the problem, makes two steps of F2BA over whole sums, and evaluates phi at their
start and end where it is defined. A problem whose data are not on this machine has the sentence that says so in place of a
number. Steps are short and the ridge is large, so that phi is solved in minutes: neither changes a size.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

FULL = (
    "cleaning_mnist[size=all,n_train=50000,n_val=10000,n_test=10000,ridge=0.1]",
    "cleaning_fashion[n_train=50000,n_val=10000,n_test=10000,ridge=0.1]",
    "cleaning_cnn[images=mnist,n_train=50000,n_val=10000,n_test=10000]",
    "distill_mnist[size=all,n_train=60000,n_test=10000,ridge=0.1]",
    "logreg_covtype[n=581012]",
    "newsgroups[p=130107]",
    "representation_omniglot",
)
METHOD = "f2ba[K=1,lam=10,eta_x=0.001,a_y=0.001,a_z=0.001]"
STEPS = 2
MOST = 2.0  # GB
_ONE = "--in-this-process"


@dataclass(frozen=True)
class Peak:
    """Of one problem; `why` is empty if it was measured."""

    problem: str
    gigabytes: float
    phi: bool
    why: str = ""

    @classmethod
    def of(cls, problem: str) -> Self:
        """In a process of its own."""
        told = subprocess.run([sys.executable, __file__, _ONE, problem], capture_output=True, text=True, check=False)
        if told.returncode:
            reason = told.stderr.strip().splitlines()[-1] if told.stderr.strip() else "no word"
            return cls(problem, 0.0, False, f"the process ended with {told.returncode}: {reason}")
        return cls(**json.loads(told.stdout))

    @classmethod
    def here(cls, problem: str) -> Self:
        """Of this process, which has to have done nothing else."""
        import bilevelbench
        from bilevelbench.plan.trial import Schedule

        results = bilevelbench.run(METHOD, problem, steps=STEPS, schedule=Schedule(ratio=1e12), progress=False)
        row = results.runs.iloc[0]
        why = "" if row.status == "budget" else f"{row.status}: {row.message}"
        return cls(problem, _peak() / 1e9, bool(row.phi == row.phi), why)  # NaN: not evaluated

    @property
    def is_fine(self) -> bool:
        return not self.why and self.gigabytes < MOST


def _peak() -> int:
    """Bytes of this program alone: on Linux `peak_memory` counts what the process that started it had, too."""
    from bilevelbench.processes import peak_memory

    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")), peak_memory())


def table(peaks: Sequence[Peak]) -> str:
    lines = ["| problem | peak memory, GB | phi evaluated |", "| --- | --- | --- |"]
    for peak in peaks:
        size, phi = (peak.why, "–") if peak.why else (f"{peak.gigabytes:.2f}", "yes" if peak.phi else "no")
        lines.append(f"| `{peak.problem}` | {size} | {phi} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument(
        "problems", nargs="*", default=FULL, help="as on the command line; all large ones if none is given"
    )
    parser.add_argument(_ONE, action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.in_this_process:
        print(json.dumps(asdict(Peak.here(*given.problems))))
        return
    peaks = [Peak.of(problem) for problem in given.problems]
    print(table(peaks))
    sys.exit(0 if all(peak.is_fine for peak in peaks) else 1)


if __name__ == "__main__":
    main()
