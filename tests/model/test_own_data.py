"""Data of one's own: collated once, the same rows in every run, and a sentence where that cannot be."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
)

from bilevelbench import InvalidInput
from bilevelbench.model import own_data
from bilevelbench.model.own_data import OwnData

A, b = torch.arange(600.0).reshape(300, 2), torch.arange(300)


class Dicts(Dataset):
    def __len__(self) -> int:
        return 300

    def __getitem__(self, i: int) -> dict[str, object]:
        return {"a": A[i], "b": i}


class Stream(IterableDataset):
    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self):
        return iter(A[: self.n])


def test_tensors_are_taken_as_they_are():
    data = OwnData.of("data_g", (A, {"label": b}))
    assert data.rows[0] is A
    assert data.n == 300
    some = data.at(torch.tensor([[3, 4], [5, 3]]))
    assert some[0].shape == (2, 2, 2)
    assert some[1]["label"].tolist() == [[3, 4], [5, 3]]


@pytest.mark.parametrize(
    "given",
    [
        TensorDataset(A, b),
        DataLoader(TensorDataset(A, b), batch_size=7),
        DataLoader(TensorDataset(A, b), batch_size=7, shuffle=True, drop_last=True),
        DataLoader(Subset(TensorDataset(A, b), range(300)), batch_size=300),
    ],
)
def test_data_sets_and_loaders_give_all_rows_in_their_order(given):
    data = OwnData.of("data_g", given)
    assert torch.equal(data.rows[0], A)
    assert torch.equal(data.rows[1], b)
    assert data.batch == (given.batch_size if isinstance(given, DataLoader) else None)


def test_dicts_and_streams():
    assert torch.equal(OwnData.of("data_g", Dicts()).rows["b"], b)
    assert torch.equal(OwnData.of("data_g", Stream(300)).rows, A)
    assert torch.equal(OwnData.of("data_g", DataLoader(Stream(300), batch_size=9)).rows, A)


def test_a_sampler_of_ones_own_decides_which_rows():
    loader = DataLoader(TensorDataset(A, b), batch_size=2, sampler=SubsetRandomSampler([5, 1, 8]))
    assert sorted(OwnData.of("data_g", loader).rows[1].tolist()) == [1, 5, 8]


def test_own_collate():
    loader = DataLoader(
        TensorDataset(A, b), batch_size=2, collate_fn=lambda rows: torch.stack([2 * a for a, _ in rows])
    )
    assert torch.equal(OwnData.of("data_g", loader).rows, 2 * A)


class Augmented(Dataset):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, i: int) -> torch.Tensor:
        return A[i] + torch.randn(2)


def test_random_transforms_are_drawn_once_and_leave_the_generator_alone():
    torch.manual_seed(4)
    before = torch.get_rng_state()
    first = OwnData.of("data_g", Augmented())
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    again = OwnData.of("data_g", DataLoader(Augmented(), batch_size=3, shuffle=True))
    assert torch.equal(first.rows, again.rows)


def test_too_large_for_memory(monkeypatch):
    monkeypatch.setattr(own_data, "free_memory", lambda: 3000)
    with pytest.raises(
        InvalidInput, match=r"data_g fills .* GiB after \d batches.*collated into memory once.*a part of it"
    ):
        OwnData.of("data_g", TensorDataset(A, b))
    assert OwnData.of("data_g", TensorDataset(A[:50], b[:50])).n == 50


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (DataLoader(TensorDataset(A[:0])), "data_g is empty: it gave no batch"),
        (DataLoader(Stream(3), batch_size=4, drop_last=True), "data_g is empty: it gave no batch.*drop_last"),
        (TensorDataset(A[:0]), "data_g is empty"),
        (A[:0], "data_g has no rows"),
        ([], "data_g has no rows; give at least one, or leave data_g out"),
        ((A, b[:7]), r"data_g\[0\] has 300, data_g\[1\] has 7 rows"),
        ((A, 3.0), r"data_g\[1\] is float; data are a tensor"),
        ({"n": torch.tensor(3)}, r"data_g\['n'\] is a tensor without an axis"),
        (DataLoader([torch.zeros(2), torch.zeros(3)], batch_sampler=[[0], [1]]), "its rows do not fit into one tensor"),
        (DataLoader(TensorDataset(A, b), batch_size=None), r"data_g\[1\] is a tensor without an axis"),
        (DataLoader(["one", "two"]), r"data_g\[0\] is str; data are a tensor"),
    ],
)
def test_what_is_no_data(given, message):
    with pytest.raises(InvalidInput, match=message):
        OwnData.of("data_g", given)
