"""The texts of parameters: those that pydantic itself would find, without making it look at every import."""

from __future__ import annotations

import pytest
from pydantic import BaseModel, ConfigDict, Field

from bilevelbench.discovery.registry import registry
from bilevelbench.model.field_texts import field_texts


class _ByPydantic(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True)


class _Steps(_ByPydantic):
    a: float = 0.1
    """step of y"""
    b: float = 0.1
    """step of x"""
    c: float = Field(0.1, description="said in the field")
    """said below"""


class _Other(_ByPydantic):
    a: float = 0.2
    """another step"""
    K: int = 3
    """number of
    steps"""


class _Both(_Steps, _Other):
    b: float = 0.3
    silent: int = 1

    def k(self) -> int:
        """Not a field."""
        return self.K


@pytest.mark.parametrize("cls", [_Steps, _Other, _Both])
def test_the_texts_are_those_that_pydantic_finds(cls):
    assert field_texts(cls) == {name: field.description or "" for name, field in cls.model_fields.items()}


def test_inherited_overridden_and_silent():
    assert field_texts(_Both) == {
        "a": "step of y",
        "b": "",
        "c": "said in the field",
        "K": "number of\nsteps",
        "silent": "",
    }


def test_a_class_without_source_has_empty_texts():
    typed = {"BaseModel": BaseModel, "__name__": "typed"}
    exec('class Typed(BaseModel):\n    a: float = 1.0\n    """text"""\n', typed)
    assert field_texts(typed["Typed"]) == {"a": ""}


def test_the_text_of_a_built_in_method():
    assert field_texts(registry().algorithms["mrbo"].value)["a"] == "step of y and v; default 1/L_g"
