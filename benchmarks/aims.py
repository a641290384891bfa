"""What was aimed at, beside the ratios of this run and the stored ones of the last release: the table of docs/decisions/030.

python benchmarks/aims.py    prints it as Markdown, from summary.json and stored.json; measures nothing
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from regressions import STORED, SUMMARY, read

METHODS = ("soba", "stocbio", "f2sa")


@dataclass(frozen=True)
class Aim:
    """Numbers by name that are to be at most `most`, or at least `least`."""

    what: str
    names: Sequence[str]
    most: float | None = None
    least: float | None = None

    @property
    def text(self) -> str:
        return f"<= {self.most:g}" if self.most is not None else f">= {self.least:g}"

    def is_met(self, values: Mapping[str, float]) -> str:
        """yes, no, how many of several, or that something was not measured."""
        seen = [values[name] for name in self.names if name in values]
        good = sum(v <= self.most if self.most is not None else v >= (self.least or 0.0) for v in seen)
        if len(seen) < len(self.names):
            return "not measured" if not seen else f"{good} of {len(seen)}, the rest not measured"
        return "yes" if good == len(seen) else "no" if good == 0 else f"{good} of {len(seen)}"


def _jax(what: str, kind: str, alone: float, lanes: int, packed: float, compiled: float | None = None) -> list[Aim]:
    methods = METHODS[:2] if kind == "quadratic_sum_500" else METHODS
    name = [f"jax_ratio_{kind}_{method}" for method in methods]
    what = f"{what}, over jitted JAX: {' / '.join(methods)}"
    return [
        Aim(f"{what}, one trial", name, alone),
        Aim(f"{what}, one trial, compiled", [f"{n}_compiled" for n in name], compiled or alone),
        Aim(f"{what}, a lane of {lanes}", [f"{n}_lane_of_{lanes}" for n in name], packed),
        Aim(f"{what}, a lane of {lanes}, compiled", [f"{n}_compiled_lane_of_{lanes}" for n in name], packed),
    ]


def _hypergradients(pair: str, what: str) -> Aim:
    names = [f"hypergradient_ratio_{case}_{pair}" for case in ("ridge", "network", "large_network")]
    return Aim(f"a hypergradient by autograd, {what}: 20 numbers / small network / 100 x 100 network", names, 1.0)


AIMS = (
    *_jax("quadratic_sum 20/10, batch 64", "quadratic_sum", 5, 36, 0.5, 1.5),
    *_jax("quadratic_sum 20/10, whole", "quadratic_sum_full", 5, 36, 0.3, 1.5),
    *_jax("logreg_digits, batch 64", "logreg_digits", 5, 36, 0.5, 1.5),
    *_jax("logreg_digits, whole", "logreg_digits_full", 1.5, 36, 0.5),
    *_jax("quadratic_sum 500/500, float32, batch 16", "quadratic_sum_500", 1.5, 8, 0.7),
    _hypergradients("cg", "conjugate gradients"),
    _hypergradients("fixed_point", "fixed point"),
    _hypergradients("reverse", "backwards through stored steps"),
    _hypergradients("unrolled", "one graph of all steps"),
    Aim(
        "the same over torchopt (unrolled) / higher (unrolled) / torchopt (implicit)",
        [f"library_ratio_{peer}" for peer in ("torchopt_unrolled", "higher_unrolled", "torchopt_cg")],
        1.0,
    ),
    Aim("12 trials x 20,480 steps over `benchopt run`", ["benchopt_ratio"], 0.5),
    Aim("the same with `--compile auto`", ["benchopt_ratio_compiled"], 0.5),
    Aim("one tiny trial, command to table, seconds", ["command_tiny_trial_seconds"], 3),
    Aim("`run` of 1,000 settings, seconds", ["command_1000_settings_seconds"], 8),
    Aim("`run` of 10,000 settings, seconds", ["command_10000_settings_seconds"], 60),
    Aim("`leaderboard build` of 1,000 settings, seconds", ["command_board_1000_settings_seconds"], 6),
    Aim("`bilevelbench list`, seconds", ["command_list_seconds"], 0.7),
    Aim("20 newsgroups, a step of plain autograd over ours", ["news_step_speedup"], least=10),
    Aim("20 newsgroups, y* at x0, seconds", ["news_solve_cold_seconds"], 20),
    Aim("20 newsgroups, y* from one near by, seconds", ["news_solve_warm_seconds"], 5),
    Aim("20 newsgroups, F2BA, MiB at most", ["news_peak_mib"], 700),
    Aim("memory of 10,000 trials, growth", ["ten_thousand_trials_memory_growth"], 0.15),
    Aim(
        "memory of 100,000 steps, growth: interpreted / compiled",
        [f"memory_of_100000_steps_{how}_growth" for how in ("never", "always")],
        0.15,
    ),
)


def table(now: Mapping[str, float], stored: Mapping[str, float]) -> str:
    lines = ["| | aim | stored | now | met |", "|---|---|---|---|---|"]
    for aim in AIMS:
        before, after = (" / ".join(_text(values.get(name)) for name in aim.names) for values in (stored, now))
        lines.append(f"| {aim.what} | {aim.text} | {before} | {after} | {aim.is_met(now)} |")
    return "\n".join(lines)


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"


if __name__ == "__main__":
    print(table(read(SUMMARY), read(STORED)))
