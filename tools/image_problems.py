"""What the problems on images give: labels that are found to be wrong, and images that are learned.

    python tools/image_problems.py cleaning -o FOLDER     cleaning_mnist, half of the labels wrong (needs MNIST's 5,000 images)
    python tools/image_problems.py distill -o FOLDER      distill_digits

The first holds methods against training on every label and against whoever knows which labels are wrong. The second holds
learned images against as many real ones, drawn at random. Both write pictures into the folder.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from bilevelbench import Instance, Problem
from bilevelbench.discovery.registry import registry
from bilevelbench.engine.pictures import png
from bilevelbench.engine.setup import PreparedPack
from bilevelbench.model.rounding import one_thread
from bilevelbench.plan.spec_text import parse_spec

#: Steps are from a few runs on another data set, and not tuned.
CLEANING = {
    "soba[a=4,b=300,power=0]": 4000,
    "srba[a=4,b=500]": 2000,
    "stocbio[a=2,eta_v=2,eta_x=300]": 800,
    "f2bsa[lam=10,a_y=2,a_z=2,eta_x=300]": 600,
}
DISTILLING = "aid[D=30,N=30,eta_x=20]"


def answer(text: str, instance: Instance, steps: int) -> tuple[Tensor, Tensor]:
    """x and y of this method after so many steps, (dx,) and (dy,)."""
    (spec,) = parse_spec(text)
    method = registry().algorithm(spec.name).value(**spec.params)
    pack = PreparedPack(instance, [method.resolve(instance.constants)], [0])
    state = pack.init()
    for step in range(1, steps + 1):
        state = pack.step(step, state)
    x, y = pack.algorithm.point(state)
    return x[0], y[0]


@torch.no_grad()
def trained(instance: Instance, x: Tensor) -> Tensor:
    """y*(x), to |g_y| <= 1e-6."""

    def value_and_slope(flat: np.ndarray) -> tuple[float, np.ndarray]:
        y = torch.from_numpy(flat).unsqueeze(0)
        return float(instance.value_g(x.unsqueeze(0), y)), instance.grad_g_y(x.unsqueeze(0), y)[0].numpy()

    found = minimize(
        value_and_slope, np.zeros(instance.dy), jac=True, method="L-BFGS-B", options={"maxiter": 5000, "gtol": 1e-6}
    )
    return torch.from_numpy(found.x)


def metric(instance: Instance, name: str, x: Tensor, y: Tensor) -> float:
    return float(instance.metrics[name](x.unsqueeze(0), y.unsqueeze(0)))


def save(title: str, images: Tensor, path: Path, zoom: int) -> None:
    path.write_bytes(png(title, images.repeat_interleave(zoom, -1).repeat_interleave(zoom, -2)))
    print(f"{path}: {title}")


def cleaning(folder: Path) -> None:
    problem = registry().problem("cleaning_mnist").value(corruption=0.5, ridge=1e-4)
    instance = problem.build()
    wrong = problem._data()[3]
    print(
        "cleaning_mnist, half of 2,500 labels wrong; accuracy on 1,250 images after training with the weights that were found"
    )
    far = torch.tensor(20.0)
    for name, x in (
        ("every label", far.expand(instance.dx)),
        ("the right labels alone", torch.where(wrong, -far, far)),
    ):
        print(f"{name:45} accuracy {metric(instance, 'test_accuracy', x, trained(instance, x)):.3f}")
    best = -1.0, "", instance.x0[0]
    for text, steps in CLEANING.items():
        x, y = answer(text, instance, steps)
        f1, y = metric(instance, "f1", x, y), trained(instance, x)
        print(
            f"{text:45} accuracy {metric(instance, 'test_accuracy', x, y):.3f}, F1 of wrong labels {f1:.3f}", flush=True
        )
        best = max(best, (f1, text, x), key=lambda found: found[0])
    _, text, x = best
    print(f"pictures of {text}")
    for number, (title, images) in enumerate(_pictures(instance, x).items()):
        save(title, images, folder / f"cleaning_mnist_{number}.png", zoom=2)


def distill(folder: Path, sizes: Sequence[int] = (1, 5), seeds: int = 3, steps: int = 100) -> None:
    print(f"distill_digits: accuracy on the 898 images that f does not see, by {DISTILLING} after {steps} steps")
    for per_class in sizes:
        rows = []
        for seed in range(seeds):
            made: Problem = registry().problem("distill_digits").value(data_seed=seed, per_class=per_class)
            instance = made.build()
            real, (x, _) = instance.x0[0], answer(DISTILLING, instance, steps)
            rows.append([metric(instance, "test_accuracy", at, trained(instance, at)) for at in (real, x)])
            if (seed, per_class) == (0, 1):
                both = torch.cat([images for at in (real, x) for images in _pictures(instance, at).values()])
                save("real images above, learned ones below", both, folder / "distill_digits.png", zoom=6)
        (before, after), (off_before, off_after) = np.mean(rows, 0), np.std(rows, 0)
        told = f"{before:.3f} ± {off_before:.3f} as drawn, {after:.3f} ± {off_after:.3f} as learned"
        print(f"{10 * per_class} images: {told}", flush=True)


def _pictures(instance: Instance, x: Tensor) -> Mapping[str, Tensor]:
    assert instance.pictures is not None
    return instance.pictures(x, instance.y0[0])


def main() -> None:
    parser = argparse.ArgumentParser(description="What the problems on images give.")
    parser.add_argument("which", choices=["cleaning", "distill"])
    parser.add_argument("-o", dest="folder", type=Path, default=Path("images"))
    chosen = parser.parse_args()
    chosen.folder.mkdir(parents=True, exist_ok=True)
    torch.set_default_dtype(torch.float64)
    with one_thread():
        {"cleaning": cleaning, "distill": distill}[chosen.which](chosen.folder)


if __name__ == "__main__":
    main()
