"""Files, names and texts of strangers: what is read of them, what becomes of them, and how they are shown."""

from __future__ import annotations

import json
import os

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bilevelbench.report.booktabs import escape
from bilevelbench.report.comma_table import comma_table
from bilevelbench.report.text import printable
from bilevelbench.results.parquet import most_cells, read_parquet
from bilevelbench.results.png import png, redrawn
from bilevelbench.untrusted import Refused, parameters, parsed_json, read_bytes, read_json, slug, visible


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param('{"a":' * 40 + "1" + "}" * 40, "is nested more than 32 deep", id="nested"),
        pytest.param('{"a":' * 100_000, "is not JSON that can be read", id="too deep to parse"),
        pytest.param("[]", "holds no JSON object but list", id="list"),
        pytest.param('{"a": 1e999}', "a number beyond all bounds", id="infinite"),
        pytest.param('{"a": NaN}', "NaN is not a number", id="nan"),
        pytest.param('{"a": 9223372036854775808}', "more than 64 bits", id="long"),
        pytest.param('{"a": ' + "9" * 5000 + "}", "is not JSON that can be read", id="longer"),
        pytest.param('{"a": "\\ud800"}', "half of a character", id="surrogate"),
        pytest.param('{"' + "a" * 100_001 + '": 1}', "a text of 100,001 characters", id="text"),
    ],
)
def test_json_that_would_do_harm_later_is_refused(text, said):
    with pytest.raises(Refused, match=said):
        parsed_json(text)
    assert parameters(text) is None


def test_honest_json_is_read_as_it_is(tmp_path):
    document = {"a": [1, 2.5, None, True, "é\u202e"], "b": {"c": {"d": -(2**63)}}}
    assert read_json(write(tmp_path / "a.json", json.dumps(document)), tmp_path) == document


def test_only_plain_files_inside_of_the_folder_are_read(tmp_path):
    secret, folder = write(tmp_path / "secret", "{}"), tmp_path / "theirs"
    write(folder / "real.json", "{}")
    os.symlink(secret, folder / "out.json")
    os.symlink("real.json", folder / "in.json")
    os.symlink(tmp_path, folder / "up")
    os.mkfifo(folder / "pipe")
    assert read_bytes(folder / "in.json", folder) == b"{}"
    for path, said in (
        ("out.json", "a link that leads out"), ("up/secret", "a link that leads out"), ("pipe", "is not a file"),
        (".", "cannot be read"), ("none", "cannot be read"), ("zero\0", "cannot be read"),
    ):  # fmt: skip
        with pytest.raises(Refused, match=said):
            read_bytes(folder / path, folder)
    with pytest.raises(Refused, match=r"has 2 bytes; at most 1 are read"):
        read_bytes(secret, most=1)


def test_names_are_files_on_every_system():
    names = [
        "con",
        "nul",
        "com1",
        "lpt9",
        "aux",
        "CON",
        "con.txt",
        "a_b",
        "A_B",
        "..",
        "/etc/passwd",
        "a\\b",
        "x" * 300,
        "",
    ]
    made = [slug(name) for name in names]
    assert len({name.lower() for name in made}) == len(names)
    for name in made:
        assert name.partition(".")[0] not in {"con", "nul", "aux", "com1", "lpt9"}
        assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-")
        assert len(name) < 60


@pytest.mark.parametrize(
    "c", ["\u202e", "\u2066", "\u200b", "\u200d", "\ufeff", "\x1b", "\r", "\u115f", "\ufe0f", "\x00", "\u2800"]
)
def test_what_cannot_be_seen_is_shown(c):
    assert visible(f"a{c}b") == f"a<U+{ord(c):04X}>b"
    assert visible("a b\nφ ∞ é") == "a b\nφ ∞ é"
    assert printable("a\n b") == "a b"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "=cmd|' /C calc'!A0"])
def test_no_text_in_a_csv_file_is_a_formula(text):
    table = comma_table(pd.DataFrame({"name": [text, "plain"], text: [-1.5, 2.0]}))
    head, first, second = pd.read_csv(pd.io.common.StringIO(table), header=None).to_numpy().tolist()
    assert head[1].startswith("'")
    assert first[0].startswith("'")
    assert (second[0], float(first[1])) == ("plain", -1.5)


@pytest.mark.parametrize("text", [r"\input{/etc/passwd}", r"\write18{rm}", "^^5cinput", "$x$ % & # _ ~ {}", "\u202e\\"])
def test_latex_does_nothing_that_a_name_says(text):
    """The only commands are those that print a character."""
    bare = escape(text)
    for command in (
        "textbackslash{}",
        "textasciicircum{}",
        "textasciitilde{}",
        "textless{}",
        "textgreater{}",
        *"$%&#_{}",
    ):
        bare = bare.replace(f"\\{command}", "")
    assert not set(bare) & set("\\^$%&#_~{}"), bare


def test_a_small_file_of_many_rows_or_of_one_long_text_is_refused():
    rows = 3_000_000
    many = pa.table({f"c{n}": pa.array([0.0]).take(pa.array([0] * 10)) for n in range(3)})
    assert read_parquet(packed(many)).num_rows == 10
    zeros = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int8()), ["x" * 300])
    with pytest.raises(Refused, match=r"has texts of 900,000,000 bytes"):
        read_parquet(packed(pa.table({"a": zeros}).replace_schema_metadata(None), store_schema=False))
    with pytest.raises(Refused, match=r"has 3,000,000 rows of 8 columns; at most 20,000,000 numbers are read"):
        read_parquet(packed(pa.table({f"c{n}": pa.nulls(rows, pa.float64()) for n in range(8)})))


def test_the_limit_grows_with_the_trials_and_the_bytes():
    assert most_cells(1) == 20_000_000
    assert most_cells(30_000) == 150_000_000 > 1000 * 30_000
    assert most_cells(1, 10_000_000) == 80_000_000
    assert most_cells(10**9, 10**9) == 200_000_000


def test_what_pandas_says_of_a_table_is_not_believed():
    """An index by name, which `to_pandas` would take from the metadata."""
    frame = pd.DataFrame({"trial_id": ["a", "b"], "step": [1, 2]}).set_index("trial_id")
    table = read_parquet(packed(pa.Table.from_pandas(frame)))
    assert table.schema.metadata is None
    assert sorted(table.to_pandas().columns) == ["step", "trial_id"]


@pytest.mark.parametrize("name", ["\u202ea", "x" * 300, ""])
def test_columns_have_names_that_can_be_shown(name):
    with pytest.raises(Refused, match=r"columns|whose name cannot be shown"):
        read_parquet(packed(pa.table({name: [1.0]})))


def test_columns_of_tables_are_refused():
    with pytest.raises(Refused, match=r"has a column 'a' of type list"):
        read_parquet(packed(pa.table({"a": [[1], [2]]})))


def packed(table, **options):
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", **options)
    return sink.getvalue().to_pybytes()


def test_pictures_are_drawn_again():
    import base64

    ours = base64.b64encode(png(2, [b"\x00\xff", b"\x80\x01"])).decode()
    assert redrawn({"t": {"x": ours}}) == {"t": {"x": ours}}
    extra = base64.b64encode(png(2, [b"\x00\xff", b"\x80\x01"]) + b"<script>alert(1)</script>").decode()
    assert redrawn({"t": {"x": extra}}) == {"t": {"x": ours}}
    wide = base64.b64encode(png(10**6, [b"\0" * 10])).decode()
    for bad in (wide, "", "iVBORw0KGgo=", "%%%", None, 3, {"y": "z"}):
        assert redrawn({"t": {"x": bad}}) == {}
    assert redrawn([1]) == redrawn({"t": 3}) == {}
