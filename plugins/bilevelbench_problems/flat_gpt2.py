"""GPT-2 as a function of one vector: the parameters of the module, in its own order, one behind the other."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from bilevelbench import InvalidInput
from bilevelbench_problems.instruct import Tokens

_SIZES = {"tiny": (1, 2, 16), "nano": (2, 2, 32), "mini": (4, 4, 128), "gpt2": (12, 12, 768)}  # layers, heads, width
_CHUNK = 256  # rows in one pass


class FlatGPT2:
    """Row i's loss is the mean of -log p over the tokens of its answer, each given all tokens before it.

    Scores are computed where an answer is, and nowhere else: with GPT-2's vocabulary they would fill the memory.
    """

    def __init__(self, model: Any) -> None:
        self.body = model.transformer.eval().requires_grad_(False)
        self.shapes = {name: p.shape for name, p in self.body.named_parameters()}
        self.dim = sum(shape.numel() for shape in self.shapes.values())

    def start(self) -> Tensor:
        return torch.cat([p.detach().flatten() for p in self.body.parameters()])

    def parts(self, y: Tensor) -> dict[str, Tensor]:
        pieces = y.split([shape.numel() for shape in self.shapes.values()])
        return {name: piece.view(shape) for (name, shape), piece in zip(self.shapes.items(), pieces, strict=True)}

    def losses(self, y: Tensor, tokens: Tokens) -> Tensor:
        """(n,), differentiable in y (dim,). Rows are filled up on the right, where causal attention does not look."""
        parts = self.parts(y)
        hidden = functional_call(self.body, parts, (tokens.ids[:, :-1],), {"use_cache": False}).last_hidden_state
        row, place = tokens.answers()[:, 1:].nonzero(as_tuple=True)
        scores = hidden[row, place] @ parts["wte.weight"].T
        each = torch.nn.functional.cross_entropy(scores, tokens.ids[row, place + 1], reduction="none")
        total = torch.zeros(len(tokens.ids), dtype=y.dtype).index_add(0, row, each)
        return total / (tokens.stop - tokens.first)

    def in_chunks(self, y: Tensor, tokens: Tokens) -> Tensor:
        """The losses of many rows."""
        index = torch.arange(len(tokens)).split(_CHUNK)
        return torch.cat([self.losses(y, tokens.some(part)) for part in index])

    def gradient(self, y: Tensor, tokens: Tokens, weights: Tensor) -> tuple[Tensor, Tensor]:
        """The losses (n,), and the gradient of their sum with these weights (n,)."""
        losses, total = [], torch.zeros_like(y)
        for part in torch.arange(len(tokens)).split(_CHUNK):
            with torch.enable_grad():
                leaf = y.detach().requires_grad_(True)
                each = self.losses(leaf, tokens.some(part))
                (slope,) = torch.autograd.grad(each @ weights[part], leaf)
            losses.append(each.detach())
            total = total + slope
        return torch.cat(losses), total


def random_gpt2(size: str, vocabulary: int, longest: int, end: int, seed: int) -> Any:
    """Weights as GPT-2's were drawn before its training; global random numbers are left alone."""
    transformers = _transformers()
    layers, heads, width = _SIZES[size]
    config = transformers.GPT2Config(
        vocab_size=vocabulary, n_positions=longest, n_layer=layers, n_head=heads, n_embd=width,
        bos_token_id=end, eos_token_id=end, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        activation_function="gelu_pytorch_tanh",  # GPT-2's, as one kernel
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")


def saved_gpt2(where: str) -> Any:
    """From a folder in Hugging Face's format, or `gpt2` from their hub or its local cache."""
    transformers = _transformers()
    try:
        return transformers.GPT2LMHeadModel.from_pretrained(
            where, dtype=torch.float32, attn_implementation="eager", use_safetensors=True
        )
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InvalidInput(
            f"gpt2_cleaning: no weights from {where!r} ({reason}); give weights=FOLDER with config.json and "
            'model.safetensors, or connect to the network for weights="published", or take size="nano"'
        ) from None


def pretrained(model: FlatGPT2, tokens: Tokens, steps: int, seed: int) -> Tensor:
    """Parameters after AdamW on mini-batches of 64 rows of plain text."""
    y = model.start().requires_grad_(True)
    rng, optimizer = torch.Generator().manual_seed(seed), torch.optim.AdamW([y], lr=3e-3)
    for _ in range(steps):
        index = torch.randint(len(tokens), (64,), generator=rng)
        with torch.enable_grad():
            (y.grad,) = torch.autograd.grad(model.losses(y, tokens.some(index)).mean(), y)
        optimizer.step()
    return y.detach()


@functools.cache
def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise InvalidInput(
            "gpt2_cleaning needs the package transformers, which is not installed; pip install 'bilevelbench[llm]'"
        ) from None
    return transformers
