"""What becomes of packs whose worker process died."""

from __future__ import annotations

from collections import Counter

from bilevelbench.engine.record import PackResult, failure_row
from bilevelbench.execute.workers import SERVER_LOST
from bilevelbench.plan.packs import Pack, halves
from bilevelbench.plan.trial import Trial
from bilevelbench.processes import TIME_OVER

#: How many times a single trial is tried whose worker is killed.
ATTEMPTS = 3


class RetryPolicy:
    """What becomes of packs whose worker died: halves, or another attempt, or in the end the blame."""

    def __init__(self) -> None:
        self._deaths: Counter[str] = Counter()

    def again(self, pack: Pack, killed: bool) -> list[Pack]:
        """What to run once more; nothing if the pack's one trial is the culprit. `killed`: perhaps by someone else."""
        if len(pack) > 1:
            return list(halves(pack))
        self._deaths[pack[0].id] += 1
        return [pack] if killed and self._deaths[pack[0].id] < ATTEMPTS else []


def lost(trial: Trial, cause: str, code: int | None = None, printed: str = "") -> PackResult:
    """The row of a trial whose worker process did not come back; `printed` ends its sentence."""
    if code == TIME_OVER:
        limit = f"{trial.budget.seconds:g} seconds of steps" if trial.budget.seconds else "its time"
        return failure_row(
            trial, f"hung: gave no answer long after {limit} were over; its worker process was killed{printed}"
        )
    times = f" (in each of {ATTEMPTS} attempts)" if killed_externally(code) else ""
    return failure_row(trial, f"its worker process {cause}{times}{printed}")


def killed_externally(code: int | None) -> bool:
    """A signal may come from anywhere, also to the server; any other exit code and the time limit are the trial's own."""
    return code == SERVER_LOST or (code is not None and code < 0 and code != TIME_OVER)
