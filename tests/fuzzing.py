"""Inputs that nobody would write on purpose: 60 of each kind always, 10,000 in `make soak`, the same ones every time."""

from __future__ import annotations

import copy
import signal
import time
import tomllib
import warnings
from contextlib import suppress
from unittest import mock

import pytest
import tomli_w
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisWarning

from bilevelbench.discovery.registry import registry
from bilevelbench.errors import BilevelbenchError
from bilevelbench.studies.tuning.record import _set as without_none

#: For the test of each kind.
EXAMPLES = pytest.mark.parametrize("examples", [60, pytest.param(10_000, marks=pytest.mark.long)])

scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=12),
    st.sampled_from(["", "../../x", "/etc/passwd", "CON", "\u202etxt", "=1+1", "\\input{x}", "1e999", "x" * 200_000]),
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=8,
)


def survives(examples, strategy, target):
    """`target` takes each of so many inputs: it comes to an end, or says what is wrong with it, in ten seconds of work."""
    taken = []

    @settings(
        max_examples=examples, derandomize=True, database=None, deadline=None,
        suppress_health_check=list(HealthCheck), phases=[Phase.generate, Phase.shrink],
    )  # fmt: skip
    @given(strategy)
    def once(value):
        begin = time.process_time()
        signal.alarm(120)  # for what waits instead of working
        try:
            with warnings.catch_warnings(), suppress(BilevelbenchError):
                warnings.simplefilter("ignore", RuntimeWarning)  # of numbers that overflow
                target(value)
        finally:
            signal.alarm(0)
        taken.append(time.process_time() - begin)
        assert taken[-1] < 10

    registry()  # not in the time of the first one
    before = signal.signal(signal.SIGALRM, _hangs)
    try:
        with mock.patch("os.fsync"), warnings.catch_warnings():  # nobody pulls the plug
            warnings.simplefilter("ignore", HypothesisWarning)  # of a long input that failed, in place of the failure
            once()
    finally:
        signal.signal(signal.SIGALRM, before)
    print(f"{len(taken)} inputs, {sum(taken):.0f} s, the longest {max(taken):.2f} s")
    assert len(taken) >= examples  # hypothesis gives up early where most of what it draws is filtered out


def _hangs(*_):
    raise AssertionError("it hangs")


@st.composite
def mutated_bytes(draw, content):
    """Some bytes are changed, cut out, repeated or put in."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        length = draw(st.sampled_from([1, 1, 2, 4, 8, 100]))
        piece = draw(
            st.one_of(st.binary(max_size=8), st.just(bytes(data[at : at + length]) * 2), st.just(b"\xff" * length))
        )
        data[at : at + length] = piece
    return bytes(data)


@st.composite
def mutated_text(draw, *texts):
    """A text some of whose pieces are changed, cut out, repeated or put in."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(text)))
        length = draw(st.sampled_from([0, 1, 1, 3, 12]))
        piece = draw(
            st.one_of(
                st.text(max_size=6),
                st.text("[]{}()=,.\"'#-+0123456789einf \n\t", max_size=8),
                st.just(text[at : at + 30] * 2),
                st.sampled_from(
                    ["[" * 5000, "9" * 5000, "1e999", "-1", "nan", "true", '"\\ud800"', "\udcff", "0" * 20]
                ),
            )
        )
        text = text[:at] + piece + text[at + length :]
    return text


@st.composite
def mutated_json(draw, *documents):
    """A document some of whose values are replaced or taken away, some keys renamed, some values buried."""
    document = copy.deepcopy(draw(st.sampled_from(documents)))
    for _ in range(draw(st.integers(1, 3))):
        places = [(holder, key) for holder in _holders(document) for key in _keys(holder)]
        if not places:
            break
        holder, key = places[draw(st.integers(0, len(places) - 1))]
        what = draw(st.sampled_from(["replace", "replace", "delete", "rename", "bury", "repeat"]))
        if what == "replace":
            holder[key] = draw(values)
        elif what == "delete":
            del holder[key]
        elif what == "bury":
            for _ in range(draw(st.sampled_from([1, 40, 200]))):
                holder[key] = [holder[key]]
        elif isinstance(holder, list):
            holder.append(holder[key])  # not a copy, which would be made recursively
        else:
            holder[draw(st.text(max_size=8))] = holder[key] if what == "repeat" else holder.pop(key)
    return document


def mutated_toml(text):
    """A TOML file with other letters, or with other values."""
    return mutated_text(text) | mutated_json(tomllib.loads(text)).map(_toml).filter(bool)


def _toml(document):
    try:
        text = tomli_w.dumps(without_none(document))
        text.encode()
    except (TypeError, ValueError, AttributeError, RecursionError):
        return None
    return text


def _keys(holder):
    return list(holder) if isinstance(holder, dict) else range(len(holder))


def _holders(document):
    """Every list and table in a document, this one first."""
    found, level = [], [document]
    while level:
        holders = [value for value in level if isinstance(value, list | dict)]
        found += holders
        level = [holder[key] for holder in holders for key in _keys(holder)]
    return found
