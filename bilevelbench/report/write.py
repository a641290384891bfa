"""`bilevelbench report`: everything that is found in a folder of results, in one of the formats."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bilevelbench.errors import StoreError
from bilevelbench.report import formats
from bilevelbench.report.contents import Report
from bilevelbench.results.files import replace


def write_report(report: Report, format_: str, folder: Path, out: Path | None, command: str = "") -> str:
    """Write to `out`, or return what is to be printed. An `out` without a suffix is a folder: it takes figures too."""
    chosen = formats.load(format_)
    if out is None and chosen.default_file is None:
        return chosen.document(report, command)
    if out is None or (out.suffix != "" and not out.is_dir()):
        path = out or folder / str(chosen.default_file)
        _make_folder_of(path)
        _write(path, chosen.document(report, command))
        return f"written: {path.resolve()}\n"
    from bilevelbench.report.figures.save import save_figures  # here: without figures nobody waits for matplotlib

    _make_folder_of(out / "figures")
    made = chosen.files(report, command)
    for name, text in made.items():
        _write(out / name, text)
    save_figures(report, out / "figures", chosen.figure_kinds)
    return "".join(f"{name}: {(out / name).resolve()}\n" for name in (*made, "figures"))


def _make_folder_of(path: Path) -> None:
    """Before the figures are drawn, which take seconds: where there can be no folder, nobody waits for them."""
    with _told(path):
        if not path.parent.exists():
            path.parent.mkdir(parents=True)
        next(path.parent.iterdir(), None)  # says so if it is a file


def _write(path: Path, text: str) -> None:
    with _told(path):
        replace(path, text.encode("utf-8", "replace"))


@contextmanager
def _told(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}; choose another file with -o") from None
