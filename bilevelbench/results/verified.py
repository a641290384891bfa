"""What a verification says of each trial of a folder, and the file in which it says so: `verify.json`."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, ValidationError

from bilevelbench.errors import faults
from bilevelbench.results.files import replace_file
from bilevelbench.results.packs import pack_paths
from bilevelbench.untrusted import MOST_JSON, Refused, read_bytes

VERIFY = "verify.json"
_MOST_BYTES = 2**24

_Text = Annotated[str, Field(max_length=4000)]


class TrialVerdict(StrEnum):
    """What became of a stored trial; a member is the text that is shown."""

    sentence: str
    confirms: bool
    fails: bool

    def __new__(cls, text: str, sentence: str = "", confirms: bool = False, fails: bool = False) -> Self:
        member = str.__new__(cls, text)
        member._value_ = text
        member.sentence, member.confirms, member.fails = sentence, confirms, fails
        return member

    REPRODUCED = "reproduced", "run again, every count and every number is the same to the last bit", True
    ROUNDING = "within rounding", "run again, counts are equal and numbers differ by no more than rounding", True
    DIFFERS = "differs", "run again, or held against the official folder, it is something else", False, True
    IMPOSSIBLE = "impossible", "no run of this trial can have given these numbers", False, True
    NOT_RUN = "not run", "not in the sample, or it cannot be run here"


class JudgedTrial(BaseModel):
    """A verdict on a trial, or on something else in the folder that is named instead of its id."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    trial: _Text
    verdict: TrialVerdict
    why: _Text = ""
    method: _Text = ""
    problem: _Text = ""
    seed: int | None = None


class VerifyFile(BaseModel):
    """verify.json: the verdicts, and the sums of the packs that they are about. What is not listed was not run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    created: _Text
    machine: _Text
    seed: NonNegativeInt
    sample: NonNegativeInt
    trials: NonNegativeInt
    packs: dict[str, str]
    verdicts: tuple[JudgedTrial, ...]


def sums(folder: Path) -> dict[str, str]:
    """The sum of each pack's record, which has the sums of its tables."""
    found = {}
    for path in pack_paths(folder):
        try:
            found[path.name] = hashlib.sha256(read_bytes(path / "pack.json", folder, MOST_JSON)).hexdigest()
        except Refused:
            found[path.name] = ""
    return found


def write_verified(path: Path, found: VerifyFile) -> None:
    replace_file(path, (found.model_dump_json(indent=1) + "\n").encode())


def read_verified(folder: Path) -> tuple[dict[str, TrialVerdict], str]:
    """The verdicts on the trials of a folder by id, and why there are none although there is a file."""
    path = folder / VERIFY
    try:
        if not path.is_file():
            return {}, ""
        found = VerifyFile.model_validate(json.loads(read_bytes(path, folder, _MOST_BYTES)))
    except ValidationError as error:
        return (
            {},
            f"{str(path)!r} is not a verification ({faults(error)[:300]}); run `bilevelbench verify {folder}` again",
        )
    except (OSError, ValueError, RecursionError, Refused) as error:
        return {}, f"{str(path)!r} cannot be read ({error}); run `bilevelbench verify {folder}` again"
    if found.packs != sums(folder):
        return (
            {},
            f"{str(path)!r} is about other packs than those in the folder; run `bilevelbench verify {folder}` again",
        )
    return {one.trial: one.verdict for one in found.verdicts}, ""


def mark(trials: Sequence[str], verdicts: Mapping[str, TrialVerdict]) -> str:
    """`verified 20 of 400`, `2 of 400 differ`, or `unverified`."""
    found = Counter(verdicts[trial] for trial in trials if trial in verdicts)
    said = [f"{n} of {len(trials)} {word}" for word, n in _failing(found)]
    confirmed = sum(n for verdict, n in found.items() if verdict.confirms)
    said += [f"verified {confirmed} of {len(trials)}"] if confirmed else []
    return ", ".join(said) or "unverified"


def _failing(found: Mapping[TrialVerdict, int]) -> Iterable[tuple[str, int]]:
    words = {TrialVerdict.DIFFERS: ("differs", "differ"), TrialVerdict.IMPOSSIBLE: ("is impossible", "are impossible")}
    for verdict, (one, many) in words.items():
        if n := found.get(verdict, 0):
            yield (one if n == 1 else many), n
