"""What the plugins say about themselves, as one file, for pages that are made without loading any plugin."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import torch

from bilevelbench.discovery.catalogue import describe
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.registry import Registry
from bilevelbench.errors import StoreError
from bilevelbench.model.instance import Instance
from bilevelbench.model.rounding import one_thread
from bilevelbench.model.torch_state import default_dtype

_ROUNDS = 30


def write_facts(registry: Registry, folder: Path, made: str) -> Path:
    """`facts.json`: equations, parameters and claims of the methods, constants of the embedded problems, price of an HVP.

    `made` says when and where: the price is a time.
    """
    methods = {name: _method(registry, name) for name in sorted(registry.algorithms)}
    problems, ratios = {}, {}
    for name, entry in sorted(registry.problems.items()):
        said = describe(registry, name)
        problems[name] = {"text": said.text, "parameters": said.parameters, "constants": []}
        if entry.value.embedded:
            with default_dtype(torch.float64), one_thread():
                instance = make(entry, {}).build()
                ratios[name] = hvp_ratio(instance)
            problems[name]["constants"] = [
                {"name": key, "value": constant.most, "kind": constant.kind}
                for key, constant in instance.constants.given.items()
            ]
    text = json.dumps({"made": made, "methods": methods, "problems": problems, "hvp_ratio": ratios}, indent=1)
    path = folder / "facts.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}; choose another folder with -o") from None
    return path


def _method(registry: Registry, name: str) -> dict[str, Any]:
    said, cls = describe(registry, name), registry.algorithms[name].value
    return {
        "title": said.title,
        "paper": said.paper,
        "references": said.references,
        "source": cls.__module__.replace(".", "/") + ".py",
        "family": cls.family,
        "oracle": "gradient" if cls.first_order() else "HVP",
        "text": said.text,
        "parameters": said.parameters,
        "claims": said.claims,
    }


@torch.no_grad()
def hvp_ratio(instance: Instance) -> float:
    """Time of a product with the lower Hessian over that of a lower-level gradient, the best of many alternating rounds."""
    x, y = instance.x0.reshape(-1, instance.dx)[:1], instance.y0.reshape(-1, instance.dy)[:1]
    v = torch.ones_like(y)
    best = {"grad": float("inf"), "hvp": float("inf")}
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        instance._raw["grad_g_y"](x, y)
        middle = time.perf_counter()
        instance._raw["hvp_g_yy"](x, y, v)
        best["hvp"] = min(best["hvp"], time.perf_counter() - middle)
        best["grad"] = min(best["grad"], middle - start)
    return best["hvp"] / best["grad"]
