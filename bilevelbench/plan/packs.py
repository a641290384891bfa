"""Packs: trials that run in lockstep, one lane each, because they differ only in what may differ between lanes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import Registry
from bilevelbench.errors import InvalidInput
from bilevelbench.model.lanes import PAD
from bilevelbench.plan.trial import SHORT, Trial

Pack = tuple[Trial, ...]

#: A pack that is as wide as its problem allows has so many blocks of lanes: of 256 lanes, 16 cost 1.5 times what one does.
_BLOCKS = 16


def plan(trials: Sequence[Trial], registry: Registry) -> list[Pack]:
    """Trials grouped into packs, each no wider than its problem and method allow; the order of first appearance is kept."""
    groups: dict[str, list[Trial]] = {}
    widths: dict[str, int] = {}
    keys: dict[Any, str] = {}  # of trials that differ in what no key looks at, such as the seeds of a long sweep
    for trial in trials:
        algorithm = registry.algorithm(trial.algorithm.key).value
        problem = registry.problem(trial.problem.key).value
        alike = (
            trial.algorithm.key, repr(trial.algorithm.params), trial.plugin_version, trial.problem.key,
            repr(trial.problem.params), trial.problem_plugin_version, trial.dtype, trial.schedule, trial.compile,
        )  # fmt: skip
        key = keys[alike] if alike in keys else keys.setdefault(alike, pack_key(trial, registry))
        groups.setdefault(key, []).append(trial)
        widths[key] = problem.max_lanes if algorithm.lanes else 1
    return [
        tuple(group[start : start + widths[key]])
        for key, group in groups.items()
        for start in range(0, len(group), widths[key])
    ]


def spread(packs: Sequence[Pack], workers: int, registry: Registry) -> list[Pack]:
    """These packs for so many workers: where some would have nothing to do, wide and long packs are cut, the widest first.

    They are cut between blocks, which are multiples of `PAD` lanes: the parts are padded no more than the whole. One that may
    be compiled stays whole, since each part would be compiled by itself, or not at all.
    """
    sizes = [_block(pack, registry) for pack in packs]
    blocks = [-(-len(pack) // size) for pack, size in zip(packs, sizes, strict=True)]
    parts = [1] * len(packs)
    for _ in range(len(packs), workers):
        widest = max(range(len(packs)), key=lambda i: blocks[i] / parts[i], default=None)
        if widest is None or blocks[widest] == parts[widest]:
            break
        parts[widest] += 1
    return [
        pack[size * (n * k // m) : size * (n * (k + 1) // m)]
        for pack, size, n, m in zip(packs, sizes, blocks, parts, strict=True)
        for k in range(m)
    ]


def _block(pack: Pack, registry: Registry) -> int:
    """Lanes that cost little more than a single one, so that they are not worth a worker of their own."""
    if pack[0].compile != "never" or max(trial.budget.calls for trial in pack) <= SHORT:
        return len(pack)
    return max(PAD, registry.problem(pack[0].problem.key).value.max_lanes // _BLOCKS // PAD * PAD)


def part_of(trials: Sequence[Trial], registry: Registry, part: str) -> list[Trial]:
    """The trials of part `k/n`: every n-th pack from the k-th on, so the parts are disjoint and together are all."""
    number, _, parts = part.partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise InvalidInput(f"part = {part!r}: write k/n with k from 1 to n, such as 2/5 for the second of five parts")
    packs = plan(trials, registry)
    if int(number) > len(packs):
        raise InvalidInput(f"part = {part!r} is empty: the trials are {len(packs)} packs; take as many parts at most")
    return [trial for pack in packs[int(number) - 1 :: int(parts)] for trial in pack]


def pack_key(trial: Trial, registry: Registry) -> str:
    """Equal for trials that can share a pack: same classes, structural fields, problem, dtype, schedule and way of stepping."""
    algorithm = registry.algorithm(trial.algorithm.key)
    problem = registry.problem(trial.problem.key)
    lane_fields = algorithm.value.per_lane()
    fields = make(algorithm, trial.algorithm.params).given()
    structural = {k: v for k, v in fields.items() if k not in lane_fields or v is None}
    data = dict(trial.problem.params)
    if problem.value.stackable():
        data.pop("data_seed", None)
    parts = [
        trial.algorithm.name, trial.plugin_version, structural, trial.problem.name, trial.problem_plugin_version, data,
        trial.dtype, trial.schedule.model_dump(), trial.compile,
    ]  # fmt: skip
    return json.dumps(parts, sort_keys=True, default=repr)


def halves(pack: Pack) -> tuple[Pack, Pack]:
    """A pack that failed is cut in two and run again, down to single trials, until the trial at fault is known."""
    middle = len(pack) // 2
    return pack[:middle], pack[middle:]
