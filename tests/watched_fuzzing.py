"""Inputs that atheris finds by watching the branches of our readers, of those that are written in Python.

    python watched_fuzzing.py KIND RUNS

Ends with 0 if each of so many inputs was taken, or refused with a sentence, within ten seconds. What pyarrow, zlib and json
read is not watched: `fuzzing.py` sees to these.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import atheris

with atheris.instrument_imports(
    include=["bilevelbench.plan", "bilevelbench.results", "bilevelbench.untrusted", "tomllib"]
):
    from bilevelbench.errors import BilevelbenchError
    from bilevelbench.plan.spec_text import parse_spec
    from bilevelbench.plan.suite import Suite
    from bilevelbench.results.png import png, redrawn
    from bilevelbench.results.record import record_fault
    from bilevelbench.untrusted import Refused, parsed_json, visible

FILE = Path(tempfile.mkdtemp()) / "suite.toml"


def selection(data):
    parse_spec(data.decode("utf-8", "surrogateescape"))


def suite(data):
    FILE.write_bytes(data)
    Suite.load(FILE)


def record(data):
    record_fault(parsed_json(data))


def picture(data):
    redrawn({"t": {"x": base64.b64encode(data).decode()}})


def text(data):
    shown = visible(data.decode("utf-8", "replace"))
    assert visible(shown) == shown


#: What reads, and something to begin with.
KINDS = {
    "selection": (selection, b"f2ba[K=3,lam=10,100,a='b']"),
    "suite": (suite, b'seeds = 2\n[[algorithm]]\nname = "f2ba"\nparams = { K = [1, 2] }\n[budget]\ncost = 300\n'),
    "record": (record, b'{"trial_ids": ["a"], "files": {"runs.parquet": {"bytes": 1, "sha256": ""}}, "trials": []}'),
    "picture": (picture, png(3, [bytes([0, 128, 255])] * 4)),
    "text": (text, "a\u202eb\u200b".encode()),
}


def main(kind: str, runs: str) -> None:
    read, first = KINDS[kind]

    def once(data):
        with suppress(BilevelbenchError, Refused):
            read(data)

    corpus = tempfile.mkdtemp()
    Path(corpus, "first").write_bytes(first)
    atheris.Setup([sys.argv[0], f"-runs={runs}", "-timeout=10", "-rss_limit_mb=4096", "-max_len=4096", corpus], once)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
