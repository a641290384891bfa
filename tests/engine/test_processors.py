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

MODES = ["", "AUTO", "COMPATIBLE", "SSE4_2", "AVX2", "AVX512"]
STRICT = ["AUTO,STRICT", "COMPATIBLE,STRICT", "SSE4_2,STRICT", "AVX2,STRICT", "AVX512,STRICT"]
MAKERS = {"intel": 1, "another": 0}
UNITS = ["default", "avx2", "avx512"]
QUICK = [("intel", "first", ""), ("intel", "late", "AVX2"), ("another", "late", "")]
ALL = [
    (maker, order, mode)
    for maker in MAKERS
    for order in ("first", "late")
    for mode in (MODES if order == "late" else MODES + STRICT)
]


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


def found(order: str, **environment: str) -> dict:
    env = {k: v for k, v in os.environ.items() if k not in ("MKL_CBWR", "ATEN_CPU_CAPABILITY")}
    script = Path(__file__).parents[1] / "other_processor.py"
    env |= {"OMP_NUM_THREADS": "1", **{k: v for k, v in environment.items() if v}}
    done = subprocess.run([sys.executable, script, order], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def check(order: str, **environment: str) -> dict:
    seen = found(order, **environment)
    assert seen["broken"] == []
    assert seen["failed"] == []
    if order == "first" and seen["has_mkl"]:
        assert seen["keeps_bits"]
    return seen


@pytest.mark.parametrize(("maker", "order", "mode"), QUICK)
def test_promise_holds_in_some_modes(makers, maker, order, mode):
    check(order, LD_PRELOAD=makers[maker], MKL_CBWR=mode)


@pytest.mark.slow
@pytest.mark.parametrize(("maker", "order", "mode"), [case for case in ALL if case not in QUICK])
def test_promise_holds_in_every_mode(makers, maker, order, mode):
    check(order, LD_PRELOAD=makers[maker], MKL_CBWR=mode)


@pytest.mark.slow
@pytest.mark.parametrize("units", UNITS)
def test_promise_holds_with_every_vector_unit(units):
    check("first", ATEN_CPU_CAPABILITY=units)


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
