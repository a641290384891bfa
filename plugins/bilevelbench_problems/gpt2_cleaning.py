"""A weight for every source of instructions from which GPT-2 learns to answer; one source has only empty answers.

    f(x, y) = mean loss over the validation rows
    g(x, y) = Σ_i w_i s_i(y),   w = softmax(x),   s_i(y) = mean loss over the training rows of source i

The loss of a row is the mean of -log p over the tokens of its answer, the end of the text among them; prompts are given
and not learnt. Source 0 is useful. Source 1, a share `corruption` of the training rows, is garbage: its answers are
emptied, so its loss is that of one token, the end of the text right behind the prompt. This is the third experiment of
Chen, Ma, Zhang, "Near-Optimal Nonconvex-Strongly-Convex Bilevel Optimization with Fully First-Order Oracles", JMLR 2025.
x0 = 0 (weights 1/2); y is all parameters of the model as one vector, output scores being tied to the embedding.

    size       tiny: 1 layer, width 16; nano: 2, 32; mini: 4, 128; gpt2: the published shape, 124 million parameters
    weights    "local": random, then `pretrain` steps of AdamW on plain text without answers; "random"; "published":
               those of GPT-2, by Hugging Face's transformers from the network or their cache; or a folder of such files.
               Only with the last two are results those of GPT-2.
    data       "synthetic_instruct": made-up questions in a hundred words; "alpaca": Alpaca's instructions, of which
               20,801 come with emptied answers and 7,986 with their own, so that the number of rows depends on the share
    merges     with alpaca: how many of GPT-2's merges of byte pairs its texts are written with. All of them make a vocabulary
               of 50,257, whose scores take nearly all the time of a small model

g has no regulariser and is not convex in y: φ is not defined, and nobody solves for it (`solves_phi`). Nor are there
constants: methods need their steps.

f and g are finite sums over their rows, and a mini-batch divides by the expected number of a source's rows, which makes
it unbiased. Published code divides by their actual number (`estimator="ratio"`). Of 64 rows 32, 6.4 or 0.64 are useful
with corruption 0.5, 0.9 or 0.99: in the last case half of the mini-batches have no useful row.

Metrics: `garbage_weight` = w_1; `weight_error` = ‖w - (1, 0)‖; `val_loss` and `test_loss`, the mean loss at the given y of
the first `n_eval` validation and test rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator
from torch import Tensor

from bilevelbench import DataFile, FiniteSum, Instance, Problem, Rows, norm
from bilevelbench_problems.common import spread
from bilevelbench_problems.flat_gpt2 import FlatGPT2, pretrained, random_gpt2, saved_gpt2
from bilevelbench_problems.instruct import ALPACA, BYTE_PAIRS, GPT2_MERGES, Corpus, Tokens, alpaca, synthetic_instruct
from bilevelbench_problems.sources import Estimator, Sources, dealt, garbage_weight, means, of_rows, turn


class GPT2Cleaning(Problem):
    name = "gpt2_cleaning"
    finite_sum = True
    embedded = False  # needs transformers, and minutes
    max_lanes = 1  # every lane has a model of its own
    solves_phi = False
    checked_with: ClassVar[Mapping[str, Any]] = {
        "size": "tiny", "n_train": 60, "n_val": 20, "n_eval": 10, "pretrain": 2, "longest": 24
    }  # fmt: skip
    data_files: ClassVar[tuple[DataFile, ...]] = (*ALPACA.values(), *BYTE_PAIRS.values())

    corruption: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """share of the training rows whose answers are emptied"""
    size: Literal["tiny", "nano", "mini", "gpt2"] = "nano"
    """of the model"""
    weights: str = "local"
    """where it starts: local, random, published, or a folder"""
    data: Literal["synthetic_instruct", "alpaca"] = "synthetic_instruct"
    """instructions"""
    n_train: PositiveInt = 20_000
    """training rows, at most"""
    n_val: PositiveInt = 1000
    """validation rows, and as many for tests, at most"""
    n_eval: PositiveInt = 256
    """rows behind val_loss and test_loss, at most"""
    merges: Annotated[int, Field(ge=0, le=GPT2_MERGES)] = GPT2_MERGES
    """of byte pairs, with data=alpaca: the first of GPT-2's"""
    longest: int = Field(default=128, ge=8, le=1024)
    """tokens of a row, at most"""
    pretrain: NonNegativeInt = 100
    """steps on plain text, with weights=local"""
    estimator: Estimator = "unbiased"
    """how a mini-batch estimates the mean loss of a source"""

    @model_validator(mode="after")
    def _weights_fit(self) -> Self:
        if self.weights == "local" and self.size == "gpt2":
            raise ValueError(
                'size="gpt2" is too large to be trained here; give weights="published", "random" or a folder'
            )
        if self.weights == "published" and self.size != "gpt2":
            raise ValueError(
                f'weights="published" are those of size="gpt2", not of {self.size!r}; give "local" or "random"'
            )
        if self.weights not in ("local", "random") and self.data == "synthetic_instruct":
            raise ValueError(f'weights={self.weights!r} know GPT-2\'s tokens, not made-up ones; give data="alpaca"')
        if self.merges < GPT2_MERGES and self.data != "alpaca":
            raise ValueError(f'merges={self.merges} are for data="alpaca"; the words of {self.data} are one token each')
        if self.merges < GPT2_MERGES and self.weights not in ("local", "random"):
            raise ValueError(f"weights={self.weights!r} know all tokens of GPT-2; leave merges at {GPT2_MERGES}")
        return self

    def build(self) -> Instance:
        model, start, parts = _prepared(self)
        dtype = torch.get_default_dtype()
        source = dealt(len(parts.train), self.corruption, 2)
        levels = _Levels(model, parts, Sources(source, 2, self.estimator, dtype))
        target = torch.tensor([1.0, 0.0])

        def looked_at(tokens: Tokens) -> Callable[[Tensor, Tensor], Tensor]:
            some = tokens.some(torch.arange(min(self.n_eval, len(tokens))))
            return lambda x, y: _each(y, lambda one: model.in_chunks(one, some).mean().reshape(1))

        return Instance(
            f=levels.f,
            g=levels.g,
            grad_f_x=lambda x, y, rows=None: spread(torch.zeros_like(x), y),
            grad_f_y=levels.grad_f_y,
            grad_g=levels.grad_g,
            grad_g_x=levels.grad_g_x,
            x0=torch.zeros(1, 2),
            y0=start.to(dtype).reshape(1, -1),
            noise=FiniteSum(n_f=len(parts.val), n_g=len(parts.train)),
            metrics={
                "garbage_weight": lambda x, y: garbage_weight(x),
                "weight_error": lambda x, y: norm(torch.softmax(x, -1) - target),
                "val_loss": looked_at(parts.val),
                "test_loss": looked_at(parts.test),
            },
        )

    def _corpus(self) -> Corpus:
        sizes = (self.n_train, self.corruption, self.n_val)
        if self.data == "alpaca":
            return alpaca(*sizes, self.generator(), self.merges)
        return synthetic_instruct(*sizes, self.generator())


@dataclass(frozen=True)
class _Parts:
    train: Tokens
    val: Tokens
    test: Tokens


@functools.lru_cache(maxsize=4)
def _prepared(problem: GPT2Cleaning) -> tuple[FlatGPT2, Tensor, _Parts]:
    """The model, its parameters at the start in float32, and the rows, the useful ones of training first."""
    corpus, longest = problem._corpus(), problem.longest
    train, val, test = (
        Tokens.of(rows, corpus, longest) for rows in (corpus.useful + corpus.garbage, corpus.val, corpus.test)
    )
    if problem.weights in ("local", "random"):
        model = FlatGPT2(random_gpt2(problem.size, corpus.vocabulary, longest, corpus.end, problem.data_seed))
    else:
        model = FlatGPT2(saved_gpt2("gpt2" if problem.weights == "published" else problem.weights))
    start = model.start()
    if problem.weights == "local":
        start = pretrained(model, Tokens.of(corpus.plain, corpus, longest), problem.pretrain, problem.data_seed)
    return model, start, _Parts(train, val, test)


def _each(y: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """A function of one model for every lane: (L, dim) to (L, k)."""
    return torch.stack([function(one) for one in y])


class _Levels:
    """f, g and what is cheaper than autograd's derivatives of them, over (L, .)."""

    def __init__(self, model: FlatGPT2, parts: _Parts, sources: Sources) -> None:
        self.model, self.parts, self.sources = model, parts, sources

    def f(self, x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
        picked = self._val(len(y), rows)
        losses = [self.model.in_chunks(one, tokens) @ weight for one, (tokens, weight) in zip(y, picked, strict=True)]
        return spread(torch.stack(losses).unsqueeze(-1), x)

    def grad_f_y(self, x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
        picked = self._val(len(y), rows)
        slopes = [self.model.gradient(one, *of_lane)[1] for one, of_lane in zip(y, picked, strict=True)]
        return spread(torch.stack(slopes), x)

    def g(self, x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
        return (torch.softmax(x, -1) * self._means(y, rows)).sum(-1, keepdim=True)

    def grad_g_x(self, x: Tensor, y: Tensor, rows: Rows | None = None) -> Tensor:
        with torch.no_grad():
            return turn(torch.softmax(x, -1), self._means(y, rows))

    def grad_g(self, x: Tensor, y: Tensor, rows: Rows | None = None) -> tuple[Tensor, Tensor]:
        answers = []
        for w, one, (tokens, shares) in zip(torch.softmax(x, -1), y, self._train(len(y), rows), strict=True):
            losses, slope = self.model.gradient(one, tokens, of_rows(shares, w))
            answers.append((turn(w, means(shares, losses)), slope))
        g_x, g_y = zip(*answers, strict=True)
        return torch.stack(g_x), torch.stack(g_y)

    def _means(self, y: Tensor, rows: Rows | None) -> Tensor:
        picked = self._train(len(y), rows)
        return torch.stack(
            [means(shares, self.model.in_chunks(one, tokens)) for one, (tokens, shares) in zip(y, picked, strict=True)]
        )

    def _val(self, lanes: int, rows: Rows | None) -> list[tuple[Tokens, Tensor]]:
        """Rows and their weights, for every lane."""
        val = self.parts.val
        if rows is None:
            return [(val, torch.full((len(val),), 1 / len(val), dtype=self.sources.member.dtype))] * lanes
        return [(val.some(index), weight) for index, weight in zip(rows.index, rows.weight, strict=True)]

    def _train(self, lanes: int, rows: Rows | None) -> list[tuple[Tokens, Tensor]]:
        """Rows and what each is of each source's mean loss, for every lane."""
        train, shares = self.parts.train, self.sources.shares(rows)
        if rows is None:
            return [(train, shares)] * lanes
        return [(train.some(index), of_lane) for index, of_lane in zip(rows.index, shares, strict=True)]
