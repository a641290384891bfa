"""The pictures that a problem shows of a trial's answer, as PNG files in text: small, and nothing in them can be run."""

from __future__ import annotations

import base64
import math

import torch
from torch import Tensor

from bilevelbench.errors import InvalidInput
from bilevelbench.model.instance import Instance
from bilevelbench.results import png as results_png

_PER_ROW = 10  # images
_GAP, _GREY = 1, 0.5  # pixels between images, and their shade


def pictures_of(instance: Instance, x: Tensor, y: Tensor) -> dict[str, str]:
    """Of one lane, (dx,) and (dy,): by title, all images of that title in one PNG, base64. None where x is not finite."""
    if instance.pictures is None or not bool(torch.isfinite(x).all() and torch.isfinite(y).all()):
        return {}
    shown = instance.pictures(x, y)
    return {title: base64.b64encode(png(title, images)).decode() for title, images in shown.items()}


def png(title: str, images: Tensor) -> bytes:
    """Images (k, height, width) side by side, `_PER_ROW` in a row."""
    grey = _sheet(title, images)
    return results_png.png(grey.shape[1], [bytes(line) for line in grey.tolist()])


def _sheet(title: str, images: Tensor) -> Tensor:
    """Bytes, 0 is black."""
    if images.dim() != 3 or 0 in images.shape:
        raise InvalidInput(
            f"the pictures {title!r} have the shape {tuple(images.shape)}; return images as (number, height, width)"
        )
    k, height, width = images.shape
    columns = min(k, _PER_ROW)
    rows = math.ceil(k / columns)
    sheet = torch.full((rows * (height + _GAP) - _GAP, columns * (width + _GAP) - _GAP), _GREY)
    for i, image in enumerate(images):
        top, left = (i // columns) * (height + _GAP), (i % columns) * (width + _GAP)
        sheet[top : top + height, left : left + width] = image
    return (255 * sheet.clamp(0, 1)).round().to(torch.uint8)
