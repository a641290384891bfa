"""The state of torch that everyone shares: its threads and its default dtype."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from bilevelbench.errors import InvalidInput


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def placed(start: Tensor, device: str | torch.device | None, dtype: str | torch.dtype | None) -> Tensor:
    """A start of a user, where it was asked for."""
    wanted = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is not None and wanted not in (torch.float64, torch.float32):
        raise InvalidInput(f"dtype={dtype!r}: there is float64 and float32")
    tensor = torch.as_tensor(start).detach()
    try:
        place = tensor.device if device is None else torch.device(device)
        if place.type == "mps" and (wanted or tensor.dtype) == torch.float64:
            raise InvalidInput("device='mps' has no float64; add dtype=\"float32\"")
        return tensor.to(device=place, dtype=wanted)
    except (RuntimeError, AssertionError) as error:  # what torch says of a device that it does not have
        raise InvalidInput(f"device={str(device)!r}: {str(error).splitlines()[0]}") from None
