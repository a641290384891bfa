"""What a command may not import: it would wait for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.whole

# Each step with the packages that may not be there after it; in one process, from the lightest to the heaviest.
STEPS = """
import contextlib, io, json, sys

def loaded(*packages):
    return [name for name in packages if name in sys.modules]

def cli(*arguments):
    sys.argv = ["bilevelbench", *arguments]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main()

seen = {}
heavy = ("torch", "numpy", "pandas", "pyarrow", "scipy", "matplotlib", "seaborn", "sklearn", "dask", "jinja2")
import bilevelbench
seen["import bilevelbench"] = loaded(*heavy, "pydantic", "typer")
from bilevelbench.cli.app import main
seen["the command line"] = loaded(*heavy)
cli("--help")
seen["--help"] = loaded(*heavy)
for word in ("version", "--version"):
    cli(word)
    seen[word] = loaded(*heavy)
from bilevelbench.discovery.remembered import remember
remember({kind: [] for kind in ("methods", "problems", "suites", "executors")})
cli("list")
seen["list, remembered"] = loaded(*heavy)
from bilevelbench.discovery.registry import registry
assert registry().algorithms and registry().problems
parts = ("scipy.special", "scipy.sparse", "scipy.linalg", "scipy.stats", "scipy.optimize")
seen["all plugins"] = loaded("pandas", "pyarrow", "matplotlib", "seaborn", "sklearn", "dask", "jinja2", *parts)
import bilevelbench.execute.local
seen["workers"] = loaded("matplotlib", "seaborn", "sklearn", "dask", "jinja2", "torch._dynamo", *parts)
import bilevelbench.plan.spec_text, bilevelbench.plan.trials
(method,), (problem,) = map(bilevelbench.plan.spec_text.parse_spec, ("f2ba", "quadratic"))
trial = bilevelbench.plan.trials.make_trial(registry(), method, problem, budget=bilevelbench.plan.trial.Budget(steps=2))
assert bilevelbench.engine.loop.run_pack((trial,), registry()).runs[0]["status"] == "budget"
seen["a trial without noise"] = loaded(*parts)
print(json.dumps(seen))
"""


def test_commands_import_no_more_than_they_need(tmp_path):
    env = {**os.environ, "BILEVELBENCH_CACHE": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", STEPS], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert {step: packages for step, packages in seen.items() if packages} == {}
