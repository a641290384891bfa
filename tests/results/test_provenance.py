"""Where results come from, in words: only what their records say, and only of the packs that hold them."""

from __future__ import annotations

import pytest

from bilevelbench.results.provenance import origin, when_and_where

EPYC = {"cpu": "AMD EPYC", "cores": 2, "python": "3.11.7", "packages": {"torch": "2.13.0", "bilevelbench": "0.3"}}


def pack(*ids, created="2026-11-18T10:00:00+00:00", commit="0123456789abcdef", environment=EPYC):
    return {"trial_ids": list(ids), "created": created, "commits": {"f2ba": commit}, "environment": environment}


OLDER = pack("b", created="2026-11-16T10:00:00+00:00", commit="fedcba9876543210+dirty", environment=EPYC | {"cores": 1})


@pytest.mark.parametrize(
    ("records", "wanted", "said"),
    [
        ([pack("a"), OLDER], "a", "2026-11-18, commit 0123456789, on AMD EPYC, 2 cores"),
        (
            [pack("a"), OLDER], "ab",
            "2026-11-16 to 2026-11-18, commits 0123456789, fedcba9876+dirty, on AMD EPYC, 1 core; AMD EPYC, 2 cores",
        ),
        ([pack("a"), pack("b")], "ab", "2026-11-18, commit 0123456789, on AMD EPYC, 2 cores"),
        ([pack("a", commit=None)], "a", "2026-11-18, on AMD EPYC, 2 cores"),
        ([pack("a", environment={"cpu": "M"})], "a", "2026-11-18, commit 0123456789, on M, unknown cores"),
        ([{"trial_ids": ["a"]}], "a", ""),
        ([pack("a")], "b", ""),
        ([], "a", ""),
    ],
)  # fmt: skip
def test_words(records, wanted, said):
    assert when_and_where(records, wanted) == said


def test_what_is_not_recorded_is_empty():
    assert set(origin({"environment": None, "commits": None, "created": None}).values()) == {""}
    assert origin(pack("a"))["torch"] == "2.13.0"
