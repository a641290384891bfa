"""Packed equals alone on other processors, as far as one machine can be them: modes of MKL, vector units, makers.

MKL chooses its code by the maker of the processor. Where there is a C compiler, a library that is loaded before torch's
answers that question, so an AMD processor runs what an Intel one runs, and the other way round.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.whole

MODES = ["", "AUTO", "COMPATIBLE", "SSE4_2", "AVX2", "AVX512"]
STRICT = ["AUTO,STRICT", "COMPATIBLE,STRICT", "SSE4_2,STRICT", "AVX2,STRICT", "AVX512,STRICT"]
MAKERS = {"intel": 1, "another": 0}
#: Up to the widest one that this processor has: torch believes what it is told, and a wider one ends the process.
UNITS = ["default", "avx2", "avx512"][: {"DEFAULT": 1, "AVX2": 2}.get(torch.backends.cpu.get_cpu_capability(), 3)]
#: Variables that MKL and torch read. Where the package comes first, MKL is in one of three modes whatever was asked for
#: (the last test), so only one request for each of them is tried there.
FIRST = [("first", "MKL_CBWR", mode) for mode in ("", "AVX2", "AVX512")]
LATE = [("late", "MKL_CBWR", mode) for mode in MODES]
VECTORS = [("first", "ATEN_CPU_CAPABILITY", units) for units in UNITS]
QUICK = {"intel": [FIRST[0]], "another": [LATE[0]]}
EVERY = {maker: [("first", "MKL_CBWR", mode) for mode in MODES + STRICT] + LATE + VECTORS for maker in MAKERS}


@pytest.fixture(scope="session")
def makers(tmp_path_factory) -> dict[str, str]:
    """A library for each maker that says the processor is theirs; nothing to load where nothing can be compiled."""
    compiler = shutil.which("cc")
    if compiler is None:
        return dict.fromkeys(MAKERS, "")
    folder = tmp_path_factory.mktemp("makers")
    for maker, intel in MAKERS.items():
        source = folder / f"{maker}.c"
        names = ("mkl_serv_intel_cpu", "mkl_serv_intel_cpu_true")
        source.write_text("\n".join(f"int {name}(void) {{ return {intel}; }}" for name in names))
        subprocess.run([compiler, "-shared", "-fPIC", "-o", source.with_suffix(".so"), source], check=True)
    return {maker: str(folder / f"{maker}.so") for maker in MAKERS}


def found(cases, preloaded: str) -> list[dict]:
    """What is seen in each case, all of them on a processor of this maker."""
    env = {k: v for k, v in os.environ.items() if k not in ("MKL_CBWR", "ATEN_CPU_CAPABILITY")}
    env |= {"OMP_NUM_THREADS": "1", **({"LD_PRELOAD": preloaded} if preloaded else {})}
    lines = [json.dumps({"order": order, "environment": {name: v} if v else {}}) for order, name, v in cases]
    done = subprocess.run(
        [sys.executable, Path(__file__).parents[1] / "other_processor.py"], env=env, input="\n".join(lines),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check(cases, preloaded: str, maker: str = "") -> None:
    seen = found(cases, preloaded)
    assert len(seen) == len(cases)
    for (order, name, value), one in zip(cases, seen, strict=True):
        assert (one["broken"], one["failed"]) == ([], []), (order, name, value)
        if order == "first" and one["has_mkl"]:
            assert one["keeps_bits"]["float64"], (order, name, value)
            assert one["keeps_bits"]["float32"] or _is_a_mixture(maker), (order, name, value)
        if name == "ATEN_CPU_CAPABILITY" and value == "default":
            assert one["capability"] == "DEFAULT"  # the variable is read after the fork


def _is_a_mixture(maker: str) -> bool:
    """An Intel processor with AVX-512 that says it is another maker's: there is no such machine. MKL's strict mode leaves out
    some products of float32 there; `doctor` says so, and the trials are held to what it says."""
    info = Path("/proc/cpuinfo")
    return maker == "another" and UNITS[-1] == "avx512" and info.exists() and "GenuineIntel" in info.read_text()


@pytest.mark.parametrize("maker", ["intel", pytest.param("another", marks=pytest.mark.slow)])
def test_promise_holds_in_some_modes(makers, maker):
    check(QUICK[maker], makers[maker], maker)


@pytest.mark.slow
@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("cases", [FIRST, LATE], ids=["first", "late"])
def test_promise_holds_in_every_mode(makers, maker, cases):
    check([case for case in cases if case not in QUICK[maker]], makers[maker], maker)


@pytest.mark.slow
def test_promise_holds_with_every_vector_unit():
    check(VECTORS, "")


@pytest.mark.long
@pytest.mark.parametrize("maker", MAKERS)
def test_promise_holds_whatever_mode_is_asked_for(makers, maker):
    check(EVERY[maker], makers[maker], maker)


@pytest.mark.parametrize(
    ("given", "used"),
    [
        (None, "AUTO,STRICT"),
        ("", "AUTO,STRICT"),
        ("AUTO", "AUTO,STRICT"),
        ("AVX2", "AVX2,STRICT"),
        ("branch=avx512_e1,strict", "AVX512_E1,STRICT"),
        ("COMPATIBLE", "AUTO,STRICT"),  # these know no strict mode
        ("SSE4_2,STRICT", "AUTO,STRICT"),
    ],
)
def test_strict_mode_is_asked_for_whatever_the_environment_says(given, used):
    """Before torch makes its first product, whoever imports the package first."""
    code = "import bilevelbench, os, sys; assert 'torch' not in sys.modules; print(os.environ['MKL_CBWR'])"
    environment = {k: v for k, v in os.environ.items() if k != "MKL_CBWR"} | (
        {} if given is None else {"MKL_CBWR": given}
    )
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == used
