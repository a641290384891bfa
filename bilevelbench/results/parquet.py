"""Tables in parquet files, read as a stranger may have written them.

A few kilobytes can hold millions of equal rows, or one long text in each of them; so the sizes are looked at before a
table is unpacked, and texts are unpacked as the few that they are. Nothing beside the columns is believed: what pandas or
Arrow left in the file's metadata could rename, reindex and retype them.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bilevelbench.untrusted import MOST_TEXT, Refused, visible

#: What is read of any table, of a longer one for each of its trials and bytes, and of none. A honest table has less than
#: one number per byte and about a thousand per trial.
_CELLS, _CELLS_OF_A_TRIAL, _CELLS_OF_A_BYTE, _MOST_CELLS = 20_000_000, 5_000, 8, 200_000_000
_MOST_COLUMNS, _MOST_NAME = 2_000, 200
_MOST_LETTERS = 2**28  # of all texts of a table


def read_parquet(data: bytes, columns: list[str] | None = None, trials: int = 0) -> pa.Table:
    """The table in these bytes, as far as the limits go; `trials` is how many it is known to be about."""
    try:
        return _read(data, columns, trials)
    except (pa.ArrowException, OSError, ValueError, KeyError, IndexError, OverflowError, MemoryError) as error:
        raise Refused(f"is not a parquet file that can be read ({error})") from error


def _read(data: bytes, columns: list[str] | None, trials: int) -> pa.Table:
    head = pq.ParquetFile(pa.BufferReader(data), thrift_string_size_limit=2**24, thrift_container_size_limit=2**17)
    for fault in _too_much(head.metadata, len(data), trials):
        raise Refused(fault)
    schema = head.schema_arrow
    for field in schema:
        if not (_is_text(field.type) or pa.types.is_primitive(field.type) or pa.types.is_null(field.type)):
            raise Refused(f"has a column {field.name[:_MOST_NAME]!r} of type {str(field.type)[:80]}")
    texts = [field.name for field in schema if _is_text(field.type)]
    # each text once, however many rows repeat it
    file = pq.ParquetFile(pa.BufferReader(data), metadata=head.metadata, read_dictionary=texts)
    table = file.read(columns=columns, use_threads=False, use_pandas_metadata=False)
    table.validate(full=True)
    _hold_texts(table)
    plain = pa.schema([pa.field(name, schema.field(name).type) for name in table.column_names])
    return table.cast(plain).replace_schema_metadata(None)


def most_cells(trials: int, size: int = 0) -> int:
    """How many numbers are read of a table about so many trials, in a file of so many bytes."""
    return min(max(_CELLS, _CELLS_OF_A_TRIAL * trials, _CELLS_OF_A_BYTE * size), _MOST_CELLS)


def _too_much(found: pq.FileMetaData, size: int, trials: int) -> Iterator[str]:
    rows, width = found.num_rows, found.num_columns
    most = most_cells(trials, size)
    if rows * width > most:
        yield f"has {rows:,} rows of {width} columns; at most {most:,} numbers are read"
    names = [found.schema.column(n).name for n in range(min(width, _MOST_COLUMNS))]
    if width > _MOST_COLUMNS or max(map(len, names), default=0) > _MOST_NAME:
        yield f"has {width} columns; at most {_MOST_COLUMNS}, with names of at most {_MOST_NAME} letters, are read"
    if len(set(names)) < len(names):
        yield "has two columns of one name"
    for name in names:
        if not name or name != visible(name):
            yield f"has a column {name!r}, whose name cannot be shown"
    groups = (found.row_group(n) for n in range(found.num_row_groups))
    unpacked = sum(group.total_byte_size for group in groups)
    if unpacked > 16 * most + _MOST_LETTERS:
        yield f"has {unpacked:,} bytes when it is unpacked, more than such a table takes"


def _hold_texts(table: pa.Table) -> None:
    """How long the texts are, each and together."""
    letters = 0
    for name, column in zip(table.column_names, table.columns, strict=True):
        for chunk in column.chunks if pa.types.is_dictionary(column.type) else []:
            lengths = pc.binary_length(chunk.dictionary)
            longest = pc.max(lengths).as_py() or 0
            if longest > MOST_TEXT:
                raise Refused(f"has a text of {longest:,} bytes in {name!r}; at most {MOST_TEXT:,} are read")
            letters += pc.sum(pc.take(lengths, chunk.indices)).as_py() or 0
    if letters > _MOST_LETTERS:
        raise Refused(f"has texts of {letters:,} bytes; at most {_MOST_LETTERS:,} are read")


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
