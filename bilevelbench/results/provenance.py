"""When, from which commit and on what machine results were made, as far as the records of their packs say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def origin(record: Mapping[str, Any]) -> dict[str, str]:
    """Of one pack; what is not recorded is empty."""
    environment = record.get("environment") or {}
    packages = environment.get("packages") or {}
    fact = {
        "date": str(record.get("created") or "")[:10],
        "commit": ", ".join(sorted({_short(c) for c in (record.get("commits") or {}).values() if c})),
        "cpu": environment.get("cpu"),
        "cores": environment.get("cores"),
        "python": environment.get("python"),
        "torch": packages.get("torch"),
        "version": packages.get("bilevelbench"),
        "from": record.get("merged_from"),
    }
    return {key: str(value or "") for key, value in fact.items()}


def when_and_where(records: Iterable[Mapping[str, Any]], trial_ids: Iterable[str]) -> str:
    """`2026-11-17 to 2026-11-18, commit 88d5a16abc, on AMD EPYC, 2 cores` of those packs that hold one of these trials."""
    wanted = set(trial_ids)
    return made_words([origin(record) for record in records if not wanted.isdisjoint(record.get("trial_ids", []))])


def made_words(origins: Sequence[Mapping[str, str]]) -> str:
    """`2026-11-17, commit 88d5a16abc, on AMD EPYC, 2 cores`, as far as it is recorded."""
    made_by, made_on = commits(origins), machines(origins)
    said = [days(origins), f"commit{'' if len(made_by) == 1 else 's'} {', '.join(made_by)}" if made_by else ""]
    return ", ".join(part for part in (*said, f"on {'; '.join(made_on)}" if made_on else "") if part)


def days(origins: Iterable[Mapping[str, str]]) -> str:
    """The day, or the first and the last one; empty if none is recorded."""
    dates = sorted({one["date"] for one in origins if one["date"]})
    return f"{dates[0]} to {dates[-1]}" if len(dates) > 1 else "".join(dates)


def commits(origins: Iterable[Mapping[str, str]]) -> list[str]:
    return sorted({commit for one in origins for commit in one["commit"].split(", ") if commit})


def machines(origins: Iterable[Mapping[str, str]]) -> list[str]:
    """`AMD EPYC, 2 cores` of each whose processor is recorded."""
    return sorted(
        {
            f"{one['cpu']}, {one['cores'] or 'unknown'} core{'' if one['cores'] == '1' else 's'}"
            for one in origins
            if one["cpu"]
        }
    )


def _short(commit: object) -> str:
    name, plus, dirty = str(commit).partition("+")
    return name[:10] + plus + dirty
