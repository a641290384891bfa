"""Omniglot's two small background sets: 242 characters of 8 alphabets, each drawn by 20 people."""

from __future__ import annotations

import functools
import io
import zipfile

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from bilevelbench import DataFile

_REPOSITORY = "https://raw.githubusercontent.com/brendenlake/omniglot/057f034baf2ecb8530bc5710e5a23584d2a519cc/python/"
_DRAWINGS = 20
TEST_ALPHABETS = ("Latin", "Tagalog")

OMNIGLOT = tuple(
    DataFile(
        name=f"omniglot_{part}",
        path=f"omniglot/images_background_{part}.zip",
        sha256=sha256,
        licence="MIT (Lake)",
        url=f"{_REPOSITORY}images_background_{part}.zip",
    )
    for part, sha256 in (
        ("small1", "f38eb80f801274ac2b4dff5b24289016bfaba4a7d5bb50deebf27104ad6cb8a4"),
        ("small2", "3ccaa407515a8778e5d0861875af38b17e418f301ad5bb3b5a6b65d901a41c7f"),
    )
)


@functools.lru_cache(maxsize=2)
def characters(side: int) -> tuple[Tensor, Tensor]:
    """(characters, 20, side²) in float64 for training and for tests: ink, 0 to 1, in the mean over each pixel's part."""
    from PIL import Image

    found: dict[tuple[str, str], list[tuple[str, Tensor]]] = {}
    for file in OMNIGLOT:
        archive = zipfile.ZipFile(io.BytesIO(file.read()))
        for name in sorted(archive.namelist()):
            if name.endswith(".png"):
                _, alphabet, character, drawing = name.split("/")
                paper = torch.from_numpy(np.asarray(Image.open(io.BytesIO(archive.read(name))), dtype=np.float64))
                found.setdefault((alphabet, character), []).append((drawing, 1 - paper))
    parts: tuple[list[Tensor], list[Tensor]] = ([], [])
    for (alphabet, _), drawings in sorted(found.items(), key=lambda item: item[0]):
        ink = torch.stack([image for _, image in drawings[:_DRAWINGS]])  # two alphabets are in both files
        parts[alphabet in TEST_ALPHABETS].append(adaptive_avg_pool2d(ink.unsqueeze(1), side).flatten(1))
    return torch.stack(parts[0]), torch.stack(parts[1])
