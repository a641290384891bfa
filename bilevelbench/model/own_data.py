"""Data of one's own, collated once: tensors that share their first axis, one row per sample.

A tensor, a tuple, list or dict of tensors, a `Dataset` or a `DataLoader`. A loader lends its data set and how it collates;
batches are drawn by the oracle. Random transforms of a data set are drawn once, here, with a seed of their own, so that
the rows are the same in every run and torch's generator stays where it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_map, tree_unflatten
from torch.utils.data import DataLoader, Dataset, IterableDataset, RandomSampler, SequentialSampler, default_collate

from bilevelbench.errors import InvalidInput
from bilevelbench.model.pytrees import placed_tree
from bilevelbench.processes import free_memory

_AT_ONCE = 256  # rows that are collated together


@dataclass(frozen=True)
class OwnData:
    """All rows, as a tree of tensors, and how many they are; `batch` is what a loader would have put together."""

    rows: Any
    n: int
    batch: int | None = None

    @classmethod
    def of(
        cls, name: str, given: Any, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None
    ) -> OwnData:
        if isinstance(given, DataLoader):
            rows, batch = _collated(name, _batches(given)), given.batch_size
        elif isinstance(given, Dataset):
            rows, batch = _collated(name, _chunks(given, default_collate)), None
        else:
            rows, batch = given, None
        return cls(placed_tree(rows, device, dtype), _length(name, rows), batch)

    def at(self, index: Tensor) -> Any:
        """The rows with these numbers, (..., B), with the axes of the index in front."""
        return tree_map(lambda t: t[index], self.rows)


def _length(name: str, rows: Any) -> int:
    """How many rows there are, if every leaf is a tensor with so many."""
    lengths: dict[str, int] = {}
    for path, leaf in tree_flatten_with_path(rows)[0]:
        where = f"{name}{keystr(path)}"
        if not isinstance(leaf, Tensor) or leaf.dim() == 0:
            seen = "a tensor without an axis" if isinstance(leaf, Tensor) else type(leaf).__name__
            raise InvalidInput(
                f"{where} is {seen}; data are a tensor, a tuple or dict of tensors with one row per sample, a Dataset or a "
                "DataLoader that collates to them"
            )
        lengths[where] = len(leaf)
    if not lengths or 0 in lengths.values():
        raise InvalidInput(f"{name} has no rows; give at least one, or leave {name} out if the function takes no batch")
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{where} has {n}" for where, n in lengths.items())
        raise InvalidInput(f"{name}: {told} rows; every tensor has to have one row per sample")
    return next(iter(lengths.values()))


def _batches(loader: DataLoader[Any]) -> Iterator[Any]:
    """The loader's rows. Those of a loader without a sampler of its own come in the order of the data set, every one."""
    usual = isinstance(loader.sampler, (SequentialSampler, RandomSampler)) and loader.batch_size is not None
    if usual and not isinstance(loader.dataset, IterableDataset):
        return _chunks(loader.dataset, loader.collate_fn)
    return iter(loader)


def _chunks(dataset: Dataset[Any], collate: Any) -> Iterator[Any]:
    if isinstance(dataset, IterableDataset):
        yield from DataLoader(dataset, batch_size=_AT_ONCE, collate_fn=collate)
        return
    n = len(dataset)  # type: ignore[arg-type]
    for start in range(0, n, _AT_ONCE):
        yield collate([dataset[i] for i in range(start, min(n, start + _AT_ONCE))])


def _collated(name: str, batches: Iterator[Any]) -> Any:
    """The batches one behind the other, in tensors of all rows."""
    parts: list[list[Tensor]] = []
    spec, room, used = None, free_memory() // 2, 0  # while the parts are joined, they are there twice
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        for batch in batches:
            found, spec = tree_flatten_with_path(batch)
            _length(name, batch)
            parts.append([leaf for _, leaf in found])
            used += sum(leaf.element_size() * leaf.numel() for leaf in parts[-1])
            if used > room:
                raise InvalidInput(
                    f"{name} fills {used / 2**30:.1f} GiB after {len(parts)} batches and is not at its end; it is collated "
                    f"into memory once, of which {2 * room / 2**30:.1f} GiB are free: give a part of it"
                )
    if spec is None:
        raise InvalidInput(f"{name} is empty: it gave no batch; check its data set, its sampler and drop_last")
    try:
        return tree_unflatten([torch.cat(column) for column in zip(*parts, strict=True)], spec)
    except RuntimeError as error:
        raise InvalidInput(
            f"{name}: its rows do not fit into one tensor ({str(error).splitlines()[0]}); collate all of them to one shape"
        ) from error
