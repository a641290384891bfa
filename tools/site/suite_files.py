"""The tables of a suite file, from the models that read it."""

from __future__ import annotations

import inspect
import re
from typing import Any

from fragments import code, prose, table
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from bilevelbench.plan.figure import PaperFigure
from bilevelbench.plan.suite import AlgorithmEntry, Collection, ProblemEntry, Suite
from bilevelbench.plan.trial import Budget, Schedule
from bilevelbench.plan.tuning import Grid, Tune

#: The tables by their names in the file.
MODELS: dict[str, type[BaseModel]] = {
    "The file": Suite,
    "[[algorithm]]": AlgorithmEntry,
    "[[problem]], [[override]], [[also]]": ProblemEntry,
    "[budget]": Budget,
    "[schedule]": Schedule,
    "[tune]": Tune,
    "[tune.grid]": Grid,
    "[figure]": PaperFigure,
    "A file that includes others": Collection,
}


def suite_models() -> str:
    parts = []
    for name, model in MODELS.items():
        said = "".join(
            f"<p>{prose(' '.join(part.split()))}</p>" for part in inspect.cleandoc(model.__doc__ or "").split("\n\n")
        )
        rows = [
            (code(key), code(_type(field.annotation)), _default(field)) for key, field in model.model_fields.items()
        ]
        parts.append(f"### {name}\n\n{said}\n\n{table(('field', 'type', 'default'), rows)}\n")
    return "\n".join(parts)


def _type(annotation: Any) -> str:
    """Without the modules and the bounds that pydantic notes."""
    text = (
        annotation.__name__
        if isinstance(annotation, type) and not hasattr(annotation, "__origin__")
        else str(annotation)
    )
    text = re.sub(r"Annotated\[(\w+), [^\]]*\]+", r"\1", text)
    return re.sub(r"\b(?:typing|bilevelbench)(?:\.\w+)*\.(?=\w)", "", text)


def _default(field: Any) -> str:
    if field.default is PydanticUndefined:
        return "required" if field.is_required() else ""
    if isinstance(field.default, BaseModel):
        return "its defaults"
    return code(field.default) if field.default not in ("", None, ()) else "none"
