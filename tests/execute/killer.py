"""Kills `run`, `merge`, `report` and `leaderboard build` at random moments, hundreds of times, and looks at what is left.

    python killer.py FOLDER TRIALS KILLS SEED

Everything is imported once and every command is a fork: so its first moment is the first of its work, and a kill can find
any other. Prints how many kills each command has met, as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path

from bilevelbench.cli.app import main
from bilevelbench.discovery.registry import registry
from bilevelbench.results.tables import load_results

for module in (
    "cli.progress",
    "execute.run",
    "results.merge",
    "report.formats.html",
    "report.write",
    "leaderboard.build",
):
    importlib.import_module(f"bilevelbench.{module}")


PACK = 10  # trials: to read many small packs would take most of the time


def sweep(trials: int) -> list[str]:
    """A plan of so many trials."""
    data_seeds = ",".join(map(str, range(trials // PACK)))
    return [
        "run",
        "-a",
        "f2ba",
        "-p",
        f"quadratic[data_seed={data_seeds}]",
        "--seeds",
        str(PACK),
        "--steps",
        "20",
        "--jobs",
        "0",
    ]


#: Of eight kills each command has so many: those that take long have fewer.
SHARES = {"run": 3, "merge": 3, "report": 1, "leaderboard": 1}


class Commands:
    """The commands of one folder, in the order in which each needs those before it."""

    def __init__(self, folder: Path, trials: int) -> None:
        self.store, self.merged, self.page, self.site = (
            folder / name for name in ("out", "merged", "page.html", "site")
        )
        self.of = {
            "run": [*sweep(trials), "-o", str(self.store)],
            "merge": ["merge", str(self.store), "-o", str(self.merged)],
            "report": ["report", str(self.store), "--format", "html", "-o", str(self.page)],
            "leaderboard": ["leaderboard", "build", str(self.store), "-o", str(self.site)],
        }
        self.log = folder / "log.txt"

    def start(self, name: str) -> int:
        pid = os.fork()
        if pid:
            return pid
        log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        sys.argv = ["bilevelbench", *self.of[name]]
        code = 1
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            sys.stdout.flush()
            os._exit(code)

    def finish(self, name: str) -> float:
        """To its end: the seconds that it takes."""
        begin = time.monotonic()
        _, status = os.waitpid(self.start(name), 0)
        assert status == 0, f"{name} ended with {status}: {self.log.read_text()}"
        return time.monotonic() - begin

    def kill(self, name: str, after: float) -> bool:
        """Whether it was still there to be killed; what ends by itself has to end well."""
        pid = self.start(name)
        time.sleep(after)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert status in (0, signal.SIGKILL), f"{name} ended with {status}: {self.log.read_text()}"
        return bool(status)

    def look(self, name: str) -> None:
        """What this command writes is not damaged, and each trial is there once."""
        if name in ("run", "merge"):
            store = self.store if name == "run" else self.merged
            if any((store / "packs").glob("[0-9a-f]*")):
                results = load_results(store)
                assert results.warnings == []
                assert results.copies == []
                assert results.runs["trial_id"].is_unique
        page = self.page if name == "report" else self.site / "index.html"
        if page.exists() or (name == "leaderboard" and self.site.exists()):  # a site is whole or not there
            assert page.read_text(encoding="utf-8").rstrip().endswith("</html>")


def equal(ours: Path, theirs: Path) -> None:
    """The same rows and curves but for their times."""
    one, two = load_results(ours), load_results(theirs)
    unlike = ["seconds", "peak_memory", "message"]
    assert one.runs.drop(columns=unlike).equals(two.runs.drop(columns=unlike))
    assert one.curve.drop(columns="seconds").equals(two.curve.drop(columns="seconds"))


def kill_all(folder: Path, trials: int, kills: int, seed: int) -> dict[str, int]:
    rng = random.Random(seed)
    undisturbed = Commands(folder / "undisturbed", trials)
    (folder / "undisturbed").mkdir(parents=True)
    seconds = {name: undisturbed.finish(name) for name in undisturbed.of}
    killed: Counter[str] = Counter()
    rounds = 0
    while killed.total() < kills:
        rounds += 1
        ours = Commands(folder / f"round{rounds}", trials)
        (folder / f"round{rounds}").mkdir()
        while killed.total() < kills:
            done = len(list(ours.store.glob("packs/[0-9a-f]*")))
            # as often as is left of its share; the others have nothing to read before the first pack
            left = [max(share * kills / 8 - killed[name], 0.0) for name, share in SHARES.items()]
            (name,) = rng.choices(list(SHARES), left) if done else ["run"]
            # of a run a few packs at a time, so that it is killed at every length
            killed[name] += ours.kill(name, rng.uniform(0, seconds[name] * (0.25 if name == "run" else 1.0)))
            ours.look(name)
            print(dict(killed), file=sys.stderr, flush=True)
            if done == trials // PACK and rng.random() < 0.1:
                break
        for name in ours.of:
            ours.finish(name)
        hidden = [path.name for path in ours.site.parent.iterdir() if path.name.startswith(".")]
        assert not hidden, f"killed commands have left {hidden} behind"
        for store in (ours.store, ours.merged):
            equal(store, undisturbed.store)
        assert len(load_results(ours.store).runs) == trials
    return {**killed, "rounds": rounds}


if __name__ == "__main__":
    registry()
    print(json.dumps(kill_all(Path(sys.argv[1]), *map(int, sys.argv[2:5]))))
