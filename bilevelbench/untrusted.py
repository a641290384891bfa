"""What strangers wrote: how much of a file is read, which names it may give, and how its text is shown.

Results, suites and data come from people whom nobody knows. A file is refused before it costs much, and `Refused` says
why as the end of a sentence about the file; its reader knows the beginning and the way out.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

#: What is read of a file: of the JSON of a pack of 100,000 trials about half, of a table or a data file.
MOST_JSON, MOST_BYTES = 2**27, 2**30
MOST_DEPTH = 32
MOST_TEXT = 100_000  # characters of one string: a traceback has a few thousand
MOST_PICTURE = 2**24  # characters of a picture in a record, which is text too

_LONE = re.compile(r"\\u[dD][89a-fA-F]")
_NAME = re.compile(r"[a-z0-9_]{1,48}")
#: Devices, whatever follows their first dot, to the operating system that most people have.
_RESERVED = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(10))})

#: Characters that count as letters or marks and show nothing: they make two names out of one.
_UNSEEN = frozenset(
    chr(code)
    for first, last in (
        (0x034F, 0x034F), (0x115F, 0x1160), (0x17B4, 0x17B5), (0x180B, 0x180F), (0x2800, 0x2800), (0x3164, 0x3164),
        (0xFE00, 0xFE0F), (0xFFA0, 0xFFA0), (0x1D159, 0x1D159), (0xE0100, 0xE01EF),
    )
    for code in range(first, last + 1)
)  # fmt: skip


Kinds = Mapping[str, tuple[type, ...]]
NUMBER, NUMBER_OR_NONE, TEXT, LIST, TABLE = (float, int), (float, int, type(None)), (str,), (list,), (dict,)


#: What values of the right kinds do that do not fit each other.
UNSHOWABLE = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)


class Refused(Exception):
    """Why a file is not read: the end of a sentence that begins with its name."""


def read_bytes(path: Path, within: Path | None = None, most: int = MOST_BYTES) -> bytes:
    """The bytes of a plain file of a limited size, which no link may put outside of the folder `within`."""
    try:
        if within is not None and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(within)):
            raise Refused(f"is a link that leads out of {str(within)!r}; put the file itself there")
        # not to wait for somebody to write into a pipe
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise Refused("is not a file")
            if found.st_size > most:
                raise Refused(f"has {found.st_size:,} bytes; at most {most:,} are read")
            return file.read(most)
    except OSError as error:
        raise Refused(f"cannot be read ({error.strerror or error})") from error
    except ValueError as error:  # a name with a zero in it
        raise Refused(f"cannot be read ({error})") from error


def read_json(path: Path, within: Path | None = None, most: int = MOST_JSON) -> dict[str, Any]:
    """The JSON object in a file, as `parsed_json` takes it."""
    return parsed_json(read_bytes(path, within, most))


def parsed_json(content: bytes | str) -> dict[str, Any]:
    """A JSON object without surprises: flat enough, with texts that can be written and numbers that can be computed with."""
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        document = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise Refused(f"is not JSON that can be read ({error})") from error
    if not isinstance(document, dict):
        raise Refused(f"holds no JSON object but {type(document).__name__}")
    _hold(document, bool(_LONE.search(text)))
    return document


def parameters(text: object) -> dict[str, Any] | None:
    """The parameters in a column of a table, which are a JSON object; None for anything else that was written there."""
    try:
        return parsed_json(str(text or "{}"))
    except Refused:
        return None


def wrong_kind(document: Any, kinds: Kinds) -> str | None:
    """What is missing in a JSON object, or is of another kind, as the end of a sentence; None if nothing is."""
    if not isinstance(document, Mapping):
        return f"has {type(document).__name__} where a table should be"
    for name, kind in kinds.items():
        if name not in document:
            return f"has no {name!r}"
        value = document[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and bool not in kind):
            return f"has a {name!r} that is {type(value).__name__}, not {kind[0].__name__}"
    return None


def slug(name: str) -> str:
    """A file name for a method or problem: the name itself if it is harmless everywhere, else its letters and a hash."""
    if _NAME.fullmatch(name) and name not in _RESERVED:
        return name
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:48]
    return f"{plain}-{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:8]}"


def visible(text: str) -> str:
    """Text whose every character is seen: `<U+202E>` for one that would turn, hide or control what stands around it."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c if c == "\n" or (c.isprintable() and c not in _UNSEEN) or _is_space(c) else _named(c) for c in text
    )


def _is_space(c: str) -> bool:
    return c.isspace() and c not in "\r\x0b\x0c\x1c\x1d\x1e\x1f\x85"  # which move the cursor of a terminal


def _named(c: str) -> str:
    return f"<U+{ord(c):04X}>"


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _hold(document: Any, may_be_lone: bool) -> None:
    """Level by level: how deep it is, and what every value in it is."""
    level: list[Any] = [document]
    for _ in range(MOST_DEPTH):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += value.keys()
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif isinstance(value, str):
                _hold_text(value, may_be_lone)
            elif isinstance(value, int) and not -(2**63) <= value < 2**63:
                raise Refused("has a whole number of more than 64 bits")
            elif isinstance(value, float) and value - value != 0:
                raise Refused("has a number beyond all bounds")
        level = below
        if not level:
            return
    raise Refused(f"is nested more than {MOST_DEPTH} deep")


def _hold_text(text: str, may_be_lone: bool) -> None:
    most = MOST_PICTURE if text.startswith("iVBORw0KGgo") else MOST_TEXT  # how a PNG begins in base64
    if len(text) > most:
        raise Refused(f"has a text of {len(text):,} characters; at most {most:,} are read")
    if may_be_lone and any("\ud800" <= c <= "\udfff" for c in text):
        raise Refused("has half of a character, which no file can hold")
