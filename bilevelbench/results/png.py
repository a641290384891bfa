"""Grey pictures as PNG files. Those of others are taken apart and drawn again: nothing in them is copied."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from typing import Any

_HEAD = b"\x89PNG\r\n\x1a\n"
_SHAPE = struct.Struct(">IIBBBBB")
_KIND = (8, 0, 0, 0, 0)  # eight bits of grey, not interlaced
_MOST_PIXELS = 2**22


def png(width: int, lines: list[bytes]) -> bytes:
    """A picture from its lines of pixels, 0 is black."""
    rows = b"".join(b"\0" + line for line in lines)  # no filter
    shape = _SHAPE.pack(width, len(lines), *_KIND)
    return _HEAD + _chunk(b"IHDR", shape) + _chunk(b"IDAT", zlib.compress(rows, 9)) + _chunk(b"IEND", b"")


def redrawn(pictures: Any) -> dict[str, dict[str, str]]:
    """By trial and title, the pictures that a record holds, each drawn again; what `png` cannot have made is left out."""
    out: dict[str, dict[str, str]] = {}
    for trial, shown in pictures.items() if isinstance(pictures, Mapping) else []:
        for title, text in shown.items() if isinstance(shown, Mapping) else []:
            drawn = _drawn(text)
            if drawn is not None:
                out.setdefault(trial, {})[title] = base64.b64encode(drawn).decode()
    return out


def _drawn(text: Any) -> bytes | None:
    try:
        data = base64.b64decode(text, validate=True)
        if data[:8] != _HEAD:
            return None
        width, height, *kind = _SHAPE.unpack(_content(data, 8, b"IHDR"))
        size = (width + 1) * height
        if tuple(kind) != _KIND or not 0 < size <= _MOST_PIXELS:
            return None
        rows = zlib.decompressobj().decompress(_content(data, 33, b"IDAT"), size + 1)
    except (TypeError, ValueError, struct.error, zlib.error):
        return None
    lines = [rows[at : at + width + 1] for at in range(0, size, width + 1)]
    if len(rows) != size or any(line[0] for line in lines):
        return None
    return png(width, [line[1:] for line in lines])


def _content(data: bytes, at: int, kind: bytes) -> bytes:
    (length,) = struct.unpack_from(">I", data, at)
    if data[at + 4 : at + 8] != kind:
        raise ValueError(f"no {kind!r} at {at}")
    return data[at + 8 : at + 8 + length]


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
