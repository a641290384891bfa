"""A bar where somebody watches, a line now and then elsewhere, nothing where it is not wanted."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from bilevelbench import display


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return Clock.now


@pytest.fixture
def clock(monkeypatch) -> type[Clock]:
    monkeypatch.setattr(display, "time", Clock())
    monkeypatch.setattr(Clock, "now", 0.0)
    return Clock


@pytest.mark.parametrize(("seconds", "text"), [(9.7, "10 s"), (119, "119 s"), (300, "5 min"), (9000, "2.5 h")])
def test_an_estimate_has_a_unit(seconds, text):
    assert display._span(seconds) == text


def test_shares_in_a_pipe(clock):
    console = Console(width=160, file=io.StringIO())
    with display.bar(console, "f2ba", 1.0) as tell:
        for n in range(101):
            clock.now += 0.25
            tell(n / 100, f"step {n}")
    lines = console.file.getvalue().splitlines()
    assert lines[0] == "f2ba 39%, 10 s, about 16 s left: step 39"
    assert lines[-1] == "f2ba 100%, 25 s: step 100"
    assert len(lines) == 3


def test_what_takes_long_is_said_before_anything_is_done(clock):
    console = Console(width=160, file=io.StringIO())
    with display.bar(console, "f2ba", 1.0) as tell:
        clock.now += 11
        tell(None, "solving the lower level for phi")
    assert console.file.getvalue() == "f2ba 0%, 11 s: solving the lower level for phi\n"


def test_a_notebook_is_watched_and_a_pipe_is_not():
    assert display.is_watched(Console(force_jupyter=True, file=io.StringIO()))
    assert not display.is_watched(Console(file=io.StringIO()))


def test_a_terminal_gets_a_bar():
    console = Console(width=120, file=io.StringIO(), force_terminal=True)
    with display.bar(console, "trials", 4, counted=True) as tell:
        tell(3, "f2ba on quadratic")
    out = console.file.getvalue()
    assert "3/4" in out
    assert "f2ba on quadratic" in out


@pytest.mark.parametrize(("progress", "is_shown"), [(True, True), (False, False), (None, False)])
def test_only_if_wanted_or_watched(progress, is_shown, capsys):
    with display.shown("trials", 1, progress, counted=True) as tell:
        tell(1, "done")
    assert ("1/1 trials" in capsys.readouterr().err) == is_shown
