"""Pictures of answers: from a problem's hook to a PNG in the pack and on the page."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
import torch
from helpers import Bowl, Shrink, cli, plugins, trial

from bilevelbench import Instance, InvalidInput
from bilevelbench.engine.loop import run_pack
from bilevelbench.engine.pictures import pictures_of
from bilevelbench.execute.executor import store_result
from bilevelbench.report.contents import read_report
from bilevelbench.report.formats import html
from bilevelbench.results.store import Store


class Seen(Bowl):
    """Bowl that shows x as two images of one pixel, the second one upside down."""

    name = "seen"

    def build(self) -> Instance:
        instance = super().build()
        instance.pictures = lambda x, y: {"x <b>": torch.stack([x, 1 - x]).reshape(-1, 1, 1)}
        return instance


def shown(text: str) -> np.ndarray:
    """The grey levels of a PNG in base64, from 0 to 1."""
    return matplotlib.image.imread(io.BytesIO(base64.b64decode(text)), format="png")


def instance_with(images: torch.Tensor) -> Instance:
    instance = Bowl().build()
    instance.pictures = lambda x, y: {"some": images}
    return instance


def test_images_stand_side_by_side_ten_in_a_row() -> None:
    images = torch.linspace(0, 1, 12).reshape(12, 1, 1).expand(12, 2, 3)
    found = pictures_of(instance_with(images), torch.zeros(2), torch.zeros(2))
    sheet = shown(found["some"])
    assert sheet.shape == (2 + 1 + 2, 10 * 3 + 9)
    for i, level in enumerate(torch.linspace(0, 1, 12).tolist()):
        top, left = (i // 10) * 3, (i % 10) * 4
        assert sheet[top : top + 2, left : left + 3] == pytest.approx(np.full((2, 3), level), abs=1 / 255)
    assert sheet[2, :] == pytest.approx(np.full(39, 0.5), abs=1 / 255)


def test_what_is_beyond_black_and_white_is_cut() -> None:
    found = pictures_of(instance_with(torch.tensor([[[-3.0, 0.0, 1.0, 7.0]]])), torch.zeros(2), torch.zeros(2))
    assert shown(found["some"]).tolist() == [[0, 0, 1, 1]]


def test_there_are_none_of_a_point_that_is_not_finite() -> None:
    assert pictures_of(instance_with(torch.zeros(1, 1, 1)), torch.tensor([0.0, torch.nan]), torch.zeros(2)) == {}
    assert pictures_of(Bowl().build(), torch.zeros(2), torch.zeros(2)) == {}


@pytest.mark.parametrize("shape", [(4, 4), (0, 4, 4), (1, 1, 4, 4)], ids=str)
def test_other_shapes_are_a_sentence(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInput, match=r"'some' have the shape .*; return images as \(number, height, width\)"):
        pictures_of(instance_with(torch.zeros(shape)), torch.zeros(2), torch.zeros(2))


def stored(folder: Path, *rates: float) -> Store:
    among, store = plugins(Seen, Shrink), Store(folder)
    for rate in rates:
        pack = (trial(f"shrink[rate={rate}]", "seen", steps=3, among=among, label=f"shrink {rate}"),)
        store_result(run_pack(pack, among), pack, store, among)
    return store


def test_every_trial_shows_its_own_answer_on_the_page(tmp_path) -> None:
    stored(tmp_path, 0.25, 0.375)
    report = read_report(tmp_path)
    held = [text for record in report.results.records for one in record["pictures"].values() for text in one.values()]
    levels = sorted(float(shown(text)[0, 0]) for text in held)
    assert levels == pytest.approx(
        [2**0.5 / 64, 2**0.5 / 8], abs=1 / 255
    )  # x shrinks to a quarter, or to a half, three times
    page = html.document(report)
    assert page.count("data:image/png;base64,") == 2
    assert all(text in page for text in held)
    assert "shrink 0.25, x &lt;b&gt;." in page
    assert "http:" not in page.replace("http://www.w3.org", "")


def test_merged_folders_keep_them(tmp_path) -> None:
    for name, rate in (("a", 0.25), ("b", 0.375)):
        stored(tmp_path / name, rate)
    assert cli("merge", tmp_path / "a", tmp_path / "b", "-o", tmp_path / "both")[0] == 0
    assert html.document(read_report(tmp_path / "both")).count("data:image/png;base64,") == 2


def test_what_is_not_a_png_is_not_shown(tmp_path) -> None:
    results = stored(tmp_path, 0.25, 0.375).load()
    for record, bad in zip(results.records, ("javascript:alert(1)", base64.b64encode(b"<svg/>").decode()), strict=True):
        (of_trial,) = record["pictures"].values()
        of_trial["x <b>"] = bad
    page = html.document(read_report(tmp_path).__class__(results))
    assert "data:image/png" not in page
    assert "javascript" not in page
    results.records[0]["pictures"] = {results.records[0]["trial_ids"][0]: json.dumps("text")}
    assert "data:image/png" not in html.document(read_report(tmp_path).__class__(results))
