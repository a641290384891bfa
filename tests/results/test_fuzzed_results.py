"""Results that are damaged, or made to do damage: a folder is read, or refused with a sentence, and can then be shown."""

from __future__ import annotations

import base64
import io
import itertools
import json
import shutil
from contextlib import suppress
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from described import asked, row
from fuzzing import EXAMPLES, mutated_bytes, mutated_json, survives, values
from hypothesis import strategies as st
from test_possible import HONEST, POINTS

from bilevelbench.discovery.registry import registry
from bilevelbench.errors import BilevelbenchError
from bilevelbench.execute.executor import Execution
from bilevelbench.leaderboard.claims import rate_tables
from bilevelbench.leaderboard.collect import Material, load
from bilevelbench.leaderboard.pages import site_files
from bilevelbench.leaderboard.site import Site
from bilevelbench.model.trial_id import trial_id
from bilevelbench.report import formats
from bilevelbench.report.analysis import rates, tuning, verdicts
from bilevelbench.report.analysis.rates import read_rates
from bilevelbench.report.analysis.summary import readable, summary
from bilevelbench.report.analysis.tuning import read_tuning
from bilevelbench.report.analysis.verdicts import find_outcomes
from bilevelbench.report.comma_table import comma_table
from bilevelbench.report.contents import read_report
from bilevelbench.results.merge import merge
from bilevelbench.results.packs import TABLES, pack_id, sha256, to_json, to_parquet
from bilevelbench.results.png import png, redrawn
from bilevelbench.results.schema import curve_of, runs_of
from bilevelbench.results.store import Store
from bilevelbench.results.tables import load_results
from bilevelbench.results.verified import VERIFY, TrialVerdict, mark, read_verified, sums
from bilevelbench.studies.verification.again import Here
from bilevelbench.studies.verification.study import verify

pytestmark = pytest.mark.whole  # many inputs

ENVIRONMENT = {"cpu": "A", "cores": 2, "python": "3.11", "packages": {"torch": "2", "bilevelbench": "1"}}
TRIAL = asked(tuned="phi")
ID = TRIAL["id"]
RECORD = {
    "created": "2026-01-01T00:00:00+00:00", "schema_version": 2, "trial_ids": [ID], "trials": [TRIAL], "machine": "m",
    "environment": ENVIRONMENT, "commits": {"plugin": "0123"}, "families": {"f2ba": "penalty"}, "merged_from": "x",
    "pictures": {ID: {"x": "iVBORw0KGgo="}}, "step_seconds": 1.0, "total_seconds": 2.0,
}  # fmt: skip
PACKS = 10  # in a folder: to read and show ten takes hardly longer than one
RUNS, CURVE = runs_of([HONEST | row(TRIAL)]), curve_of(POINTS | {"trial_id": [ID] * 3})
FIGURE = {
    "figure": {
        "name": "one", "title": "One", "claim": "It falls.",
        "panel": [{"y": "phi", "line": {"label": "here", "value": 1.0}}, {"y": "grad_phi", "x": "cost"}],
        "check": [
            {"rule": "falls", "claim": "a", "columns": ["grad_phi"], "factor": 10},
            {"rule": "ranking", "claim": "b", "column": "phi", "better": ["f2ba"], "worse": ["aid"], "at": "equal_cost"},
            {"rule": "separation", "claim": "c", "column": "phi", "low": ["f2ba"], "high": ["aid"], "below": 1, "above": 2},
        ],
    },
    "trials": [{"id": ID, "method": "f2ba", "algorithm": "f2ba", "problem": "quadratic"}], "tuning": "",
}  # fmt: skip
RATE = {
    "table": 1, "method": "gd", "label": "gd", "setting": "deterministic", "oracle": "gradient", "claimed": 2,
    "tilde": True, "target": 1.95, "predicted": 1.97, "measured": 2.2, "low": 2.1, "high": 2.3, "measured_steps": 1.95,
    "low_steps": 1.9, "high_steps": 2.0, "log_free": 1.95, "log_free_of": "steps", "local_slopes": [1.9, 2.0],
    "eps_max": 0.2, "eps_min": 0.02, "rule": "mean", "seeds": 8, "verdict": "matches", "unreached": [0.01], "over": "eps",
    "points": [{"eps": 0.2, "cost": 100.0, "steps": 10}, {"eps": 0.02, "cost": 12000.0, "steps": 1000}],
}  # fmt: skip
RATES = {
    "title": "Table 1",
    "rows": [RATE, RATE | {"measured": None, "low": None, "verdict": "not reached", "points": []}],
}
TUNING = {
    "title": "t", "summary": "s",
    "rule": {"search": "grid", "by": "phi", "trials": 2, "cost": None, "factor": 3, "seed": 0},
    "rows": [{
        "method": "f2ba", "family": "penalty", "problem": "quadratic", "space": {"lam": [1.0, 2.0]}, "grid": 2,
        "settings": 2, "trials": 2, "failed": 0, "cost": 10.0, "calls": 10, "seconds": 0.1, "best": {"lam": 1.0},
        "score": 0.5, "remark": "", "tried": [{"choice": {"lam": 1.0}, "score": 0.5}, {"choice": {"lam": 2.0}, "score": None}],
    }],
}  # fmt: skip


def tables_of(trial, **columns):
    return runs_of([HONEST | row(trial) | columns]), curve_of(POINTS | {"trial_id": [trial["id"]] * 3})


def place(folder, record, tables):
    """One pack alone in a folder."""
    shutil.rmtree(folder / "packs", ignore_errors=True)
    add(folder, record, tables)


def add(folder, record, tables):
    """A pack whose sums are right, whatever it holds."""
    try:
        name = pack_id(record)
    except (KeyError, TypeError, ValueError, AttributeError):
        name = "0" * 16
    if isinstance(record, dict):
        sums = {file: {"bytes": len(data), "sha256": sha256(data)} for file, data in zip(TABLES, tables, strict=True)}
        text = to_json({**record, "files": sums} if record.get("files") is None else record)
    else:
        text = json.dumps(record).encode()
    pack = folder / "packs" / name
    pack.mkdir(parents=True, exist_ok=True)
    for file, data in zip((*TABLES, "pack.json"), (*tables, text), strict=True):
        (pack / file).write_bytes(data)


def as_bytes(content):
    return content if isinstance(content, bytes) else json.dumps(content).encode("utf-8", "surrogatepass")


def show(folder):
    results = load_results(folder)
    Store(folder).done()
    if len(results.runs):
        table = summary(results)
        comma_table(table)
        readable(table)


def _is_writable(record):
    try:
        to_json(record) if isinstance(record, dict) else json.dumps(record).encode()
    except Exception:
        return False
    return True


def fill(folder, packs):
    """These packs and no others; the trials of each are its own."""
    shutil.rmtree(folder, ignore_errors=True)
    for record, tables in packs:
        add(folder, record, tables)


TRIALS = [asked(tuned="phi", seed=seed) for seed in range(PACKS)]
RECORDS = [RECORD | {"trial_ids": [trial["id"]], "trials": [trial], "pictures": {}} for trial in TRIALS]
WRITTEN = [[to_parquet(table) for table in tables_of(trial)] for trial in TRIALS]


@EXAMPLES
def test_records(examples, tmp_path):
    def read(records):
        fill(tmp_path, zip(records, WRITTEN, strict=True))
        show(tmp_path)

    each = [mutated_json(record).filter(_is_writable) for record in RECORDS]
    survives(examples // PACKS, st.tuples(*each), read)


@EXAMPLES
def test_bytes_of_a_record(examples, tmp_path):
    fill(tmp_path, zip(RECORDS, WRITTEN, strict=True))
    paths = sorted(tmp_path.glob("packs/*/pack.json"))

    def read(contents):
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        show(tmp_path)

    survives(examples // PACKS, st.tuples(*(mutated_bytes(path.read_bytes()) | st.binary() for path in paths)), read)


@EXAMPLES
def test_bytes_of_tables(examples, tmp_path):
    def read(contents):
        fill(tmp_path, zip(RECORDS, contents, strict=True))
        show(tmp_path)

    each = [
        st.tuples(mutated_bytes(runs), st.just(curve)) | st.tuples(st.just(runs), mutated_bytes(curve))
        for runs, curve in WRITTEN
    ]
    survives(examples // PACKS, st.tuples(*each), read)


@st.composite
def tables(draw, trial=TRIAL):
    """The two tables with columns that are missing, new, of other types or with other values."""
    out = []
    for table in tables_of(trial):
        columns = {name: table[name].to_pylist() for name in table.column_names}
        for name in draw(st.lists(st.sampled_from(sorted(columns)) | st.text(max_size=5), max_size=3)):
            kind = draw(st.sampled_from(["gone", "values", "numbers", "texts", "nested"]))
            inner = {
                "numbers": st.floats() | st.integers(-(2**63), 2**63 - 1), "texts": st.text(max_size=20) | st.none(),
                "nested": st.lists(st.integers(0, 9), max_size=2), "values": st.from_type(bool),
            }  # fmt: skip
            columns.pop(name, None)
            if kind != "gone":
                columns[name] = [draw(inner[kind]) for _ in range(table.num_rows)]
        arrays = {}
        for name, column in columns.items():
            known = table.schema.field(name).type if name in table.column_names else None
            try:
                arrays[name] = pa.array(column, known)
            except (pa.ArrowException, TypeError, ValueError, OverflowError):
                try:
                    arrays[name] = pa.array(column)
                except (pa.ArrowException, TypeError, ValueError, OverflowError):
                    arrays[name] = pa.array([str(n) for n in range(table.num_rows)])
        out.append(_written(pa.table(arrays)))
    return out


def _written(table):
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


@EXAMPLES
def test_published_tables(examples, tmp_path):
    def read(contents):
        for file, content in zip(TABLES, contents, strict=True):
            (tmp_path / file).write_bytes(content)
        show(tmp_path)

    survives(examples, tables(), read)


@EXAMPLES
def test_tables(examples, tmp_path):
    def read(contents):
        fill(tmp_path, zip(RECORDS, contents, strict=True))
        show(tmp_path)

    survives(examples // PACKS, st.tuples(*map(tables, TRIALS)), read)


def show_rates(path, results):
    table = read_rates(path)
    rates.markdown(table.title, table.rows)
    rate_tables(Site(Material({}, [table]), "make page"))


def show_tuning(path, results):
    found = read_tuning(path.parent)
    tuning.markdown(found)
    comma_table(tuning.table(found))


def show_experiment(path, results):
    for outcome in find_outcomes(path.parent.parent, results)[0]:
        verdicts.markdown(outcome)


@EXAMPLES
@pytest.mark.parametrize(
    ("file", "document", "shown"),
    [
        ("rates.json", RATES, show_rates),
        ("tuning.json", TUNING, show_tuning),
        ("experiments/one.json", FIGURE, show_experiment),
    ],
    ids=["rates", "tuning", "experiment"],
)
def test_what_lies_beside_the_tables(examples, file, document, shown, tmp_path):
    place(tmp_path, RECORD, [to_parquet(RUNS), to_parquet(CURVE)])
    results, path = load_results(tmp_path), tmp_path / file
    path.parent.mkdir(exist_ok=True)

    def read(content):
        path.write_bytes(as_bytes(content))
        shown(path, results)

    survives(examples, mutated_json(document) | values | st.binary(), read)


@EXAMPLES
def test_what_lies_beside_is_a_verification(examples, tmp_path):
    place(tmp_path, RECORD, [to_parquet(RUNS), to_parquet(CURVE)])
    verdicts = [{"trial": ID, "verdict": "reproduced", "why": "", "method": "f2ba", "problem": "quadratic", "seed": 0}]
    document = {
        "created": "2026-01-01T00:00:00+00:00", "machine": "m", "seed": 1, "sample": 20, "trials": 1,
        "packs": sums(tmp_path), "verdicts": verdicts,
    }  # fmt: skip
    assert read_written(tmp_path, document) == ({ID: TrialVerdict.REPRODUCED}, "")

    def read(content):
        found, said = read_written(tmp_path, content)
        assert not (found and said)
        mark([ID], found)

    survives(examples, mutated_json(document) | values | st.binary(), read)


def read_written(folder, content):
    (folder / VERIFY).write_bytes(as_bytes(content))
    return read_verified(folder)


PICTURE = png(3, [bytes([0, 128, 255])] * 4)


@EXAMPLES
def test_pictures(examples):
    def draw(content):
        drawn = redrawn({ID: {"x": base64.b64encode(content).decode()}})
        if drawn:  # by us, so that nothing else is in it
            assert redrawn(drawn) == drawn

    survives(examples, mutated_bytes(PICTURE), draw)


@pytest.fixture
def everything(tmp_path):
    """All that is made of a folder of packs that somebody has sent in, whether or not the others can do with it.

    Figures and sites take long: they are made of every tenth folder.
    """
    official, theirs, ours = (tmp_path / name for name in ("official", "theirs", "ours"))
    place(official, RECORD, [to_parquet(RUNS), to_parquet(CURVE)])

    def judged():
        verification = verify(theirs, Here(registry()), Execution(jobs=0), sample=0, seed=0)
        verification.rows()
        verification.file()

    def page():
        formats.load("html").document(read_report(theirs))

    def drawn():
        page()
        site_files(load([official, theirs]), "")

    numbers = itertools.count()

    def made(packs):
        shutil.rmtree(ours, ignore_errors=True)
        fill(theirs, packs)
        for make in (lambda: merge([theirs], ours), judged):
            with suppress(BilevelbenchError):
                make()
        if next(numbers) % 10 == 0:
            drawn()
        else:
            with mock.patch("bilevelbench.report.formats.html.convergence", return_value=""):
                page()

    return made


@EXAMPLES
def test_what_is_read_can_be_merged_and_is_a_page(examples, everything):
    def read(contents):
        everything(zip(RECORDS, contents, strict=True))

    survives(examples // PACKS, st.tuples(*map(tables, TRIALS)), read)


@EXAMPLES
def test_a_record_with_the_right_ids_can_be_merged_and_is_a_page(examples, everything):
    """Whoever forges a trial computes its id as we do."""
    trials = st.lists(mutated_json(asked(tuned="phi", seed=1)), min_size=PACKS, max_size=PACKS)
    survives(examples // PACKS, trials, lambda found: everything(map(sealed, found)))


def sealed(trial):
    """A record of this trial alone, and its tables, which agree with it as far as they can."""
    try:
        trial = {**trial, "id": trial_id(trial)}
        told = {
            name: trial[name]
            for name in ("seed", "dtype", "plugin", "plugin_version", "problem_plugin")
            if name in trial
        }
        told |= {"algorithm": trial["algorithm"]["name"], "problem": trial["problem"]["name"], "trial_id": trial["id"]}
        told["problem_params"] = json.dumps(trial["problem"].get("params", {}))
        runs, curve = tables_of(trial | {"seed": 0}, **told)
        record = RECORD | {"trials": [trial], "trial_ids": [trial["id"]], "pictures": {}}
        to_json(record)
    except Exception:  # it is no trial that could be written
        return RECORD, [to_parquet(RUNS), to_parquet(CURVE)]
    return record, [to_parquet(runs), to_parquet(curve)]


def test_a_sealed_record_is_read(tmp_path):
    place(tmp_path, *sealed(asked(seed=7)))
    results = load_results(tmp_path)
    assert results.warnings == []
    assert list(results.runs["seed"]) == [7]
