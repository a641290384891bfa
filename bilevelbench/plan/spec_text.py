"""A method or problem with its parameters, as text: `f2ba[K=3,lam=10,100]`."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

from bilevelbench.errors import InvalidInput
from bilevelbench.plan.trial import Spec

#: A plan, or the grid of one method or problem, has at most so many points; more are a slip of the pen.
MOST = 1_000_000


def parse_spec(text: str) -> list[Spec]:
    """`f2ba[K=3,lam=10,100]` -> two specs."""
    return expand(*parse_lists(text))


def parse_lists(text: str) -> tuple[str, dict[str, Any]]:
    """`f2ba[K=3,lam=10,100]` -> its name and the list of each parameter. A token without `=` continues the list before."""
    head, bracket, tail = text.strip().partition("[")
    name, inside = head.strip(), tail.removesuffix("]")
    if not name or "]" in name or (bracket and not tail.endswith("]")):
        raise InvalidInput(f"cannot read {text!r}; write NAME or NAME[param=value,param=value1,value2]")
    lists: dict[str, Any] = {}
    key: str | None = None
    for token in (t.strip() for t in inside.split(",")):
        if not token:
            continue
        if "=" in token:
            key, _, token = (part.strip() for part in token.partition("="))
            if key in lists:
                raise InvalidInput(f"{text!r} sets {key!r} twice; write {key}=value1,value2 for several values")
            lists[key] = []
        if key is None:
            raise InvalidInput(f"{text!r}: {token!r} stands before any parameter; write param={token}")
        if not token:
            raise InvalidInput(f"{text!r}: parameter {key!r} has no value")
        lists[key].append(_value(token))
    return name, lists


def expand(name: str, params: dict[str, Any]) -> list[Spec]:
    """The grid of a suite's table: a list is a list of values to try."""
    lists = {k: v if isinstance(v, list) else [v] for k, v in params.items()}
    size = math.prod(map(len, lists.values()))
    if size > MOST:
        raise InvalidInput(f"the grid of {name!r} has {size:,} points; at most {MOST:,} are planned: shorten its lists")
    return [Spec(name=name, params=dict(zip(lists, row, strict=True))) for row in itertools.product(*lists.values())]


def _value(token: str) -> Any:
    try:
        return json.loads(token)
    except (ValueError, RecursionError):
        pass
    for kind in (int, float):
        try:
            return kind(token)
        except ValueError:
            continue
    return {"True": True, "False": False, "None": None, "none": None}.get(token, token.strip("'\""))
