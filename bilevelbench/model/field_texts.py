"""What is written below the parameters of a method or problem.

pydantic would read it too (`use_attribute_docstrings`), but for every class when it is made: that is half of the time that the
import of all plugins takes, in each process, and only `bilevelbench info` and the conformance kit ask.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import textwrap

from pydantic import BaseModel


def field_texts(cls: type[BaseModel]) -> dict[str, str]:
    """For each field its description or the docstring below it; a field that neither explains has an empty text."""
    written: dict[str, str] = {}
    for base in reversed(cls.__bases__):  # as pydantic inherits fields: from the first base that has them
        if issubclass(base, BaseModel) and base is not BaseModel:
            written |= field_texts(base)
    own = _docstrings(cls)
    written |= {name: own.get(name, "") for name in inspect.get_annotations(cls)}
    return {name: field.description or written.get(name, "") for name, field in cls.model_fields.items()}


@functools.cache
def _docstrings(cls: type) -> dict[str, str]:
    """Those in the body of the class; none for a class that was typed into an interpreter."""
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError, SyntaxError, ValueError):
        return {}
    assert isinstance(node, ast.ClassDef)
    texts = {}
    for field, below in itertools.pairwise(node.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                texts[name] = inspect.cleandoc(text)
    return texts
