"""Formats of a report: one file each, named as `bilevelbench report --format` has it.

A format is a module with `document(report, command)`, the whole report as one text; `files(report, command)`, the texts
of a folder by file name, the main one first; `default_file`, where a document goes that nobody wants to see printed; and
`figure_kinds`, the files that a folder has of each figure.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from bilevelbench.report.contents import Report

FORMATS = tuple(module.name for module in pkgutil.iter_modules(__path__))


class Format(Protocol):
    default_file: str | None
    figure_kinds: tuple[str, ...]

    def document(self, report: Report, command: str = "") -> str: ...

    def files(self, report: Report, command: str = "") -> dict[str, str]: ...


def load(name: str) -> Format:
    return cast(Format, importlib.import_module(f"{__name__}.{name}"))
