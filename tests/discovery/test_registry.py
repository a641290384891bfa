"""Discovery: plugins from real distributions on disk, broken ones among them, and loose files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import EntryPoint, PathDistribution
from pathlib import Path

import pytest

from bilevelbench.discovery.catalogue import catalogue, describe
from bilevelbench.discovery.entry import make
from bilevelbench.discovery.loose_files import file_and_class, is_file
from bilevelbench.discovery.registry import Registry, registry, registry_of
from bilevelbench.errors import InvalidInput, UnknownName, faults, suggestion
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.plan.trial import Budget

GOOD = '''
"""Plain descent on f.

    x <- x - eta f_x
"""
from dataclasses import dataclass
from pathlib import Path
from torch import Tensor
from bilevelbench import Algorithm, hookimpl

@dataclass(frozen=True)
class State:
    x: Tensor
    y: Tensor

class {cls}(Algorithm):
    name = "{name}"
    uses = frozenset({{"grad_f"}})
    eta: float = 0.1

    def init(self, x0, y0, oracle):
        return State(x0, y0)

    def step(self, s, oracle):
        f_x, f_y = oracle.grad_f(s.x, s.y)
        return State(s.x - self.eta * f_x, s.y - self.eta * f_y)
'''
HOOK = """
@hookimpl
def bilevelbench_algorithms():
    return [{offers}]
"""


def good(cls="Descent", name="acme_gd", offers=None):
    return GOOD.format(cls=cls, name=name) + HOOK.format(offers=offers or cls)


PLUGINS = {
    "acme": good()
    + "\n@hookimpl\ndef bilevelbench_suites():\n    return [Path(__file__).with_name('acme_suite.toml')]\n",
    "broken_import": "import no_such_module_anywhere",
    "broken_exit": "import sys; sys.exit(5)",
    "broken_syntax": "def broken(:",
    "no_class": good(name="never", offers="42, 'text', int"),
    "no_step": "from bilevelbench import Algorithm, hookimpl\n"
    "class Half(Algorithm):\n    name = 'half'\n    uses = frozenset()\n" + HOOK.format(offers="Half"),
    "no_name": "from bilevelbench import Algorithm, hookimpl\nclass Anon(Algorithm): pass\n"
    + HOOK.format(offers="Anon"),
    "bad_name": good(cls="Blank", name="two words"),
    "hook_raises": "from bilevelbench import hookimpl\n" + HOOK.format(offers="1 / 0"),
    "hook_exits": "from bilevelbench import hookimpl\n" + HOOK.format(offers="exit(3)"),
    "hook_interrupts": "from bilevelbench import hookimpl\n@hookimpl\ndef bilevelbench_algorithms(): raise KeyboardInterrupt",
    "hook_endless": "import itertools\nfrom bilevelbench import hookimpl\n"
    + HOOK.format(offers="").replace("[]", "itertools.count()"),
    "unseen": good(cls="Unseen", name="a\\x1b[31m"),
    "chatty": good(name="acme_chatty") + "\nprint('hello')\n",
    "nothing": "x = 1",
    "thief": good(name="f2ba"),
    "zz_late": good(name="acme_gd"),
}
WORDS = {
    "broken_import": "failed to import broken_import: ModuleNotFoundError: No module named 'no_such_module_anywhere'",
    "broken_exit": "failed to import broken_exit: SystemExit: 5",
    "broken_syntax": "failed to import broken_syntax: SyntaxError",
    "no_class": "42 is not a subclass of Algorithm",
    "no_step": "class Half has no `init` and no `step`",
    "no_name": "class Anon has no `name`",
    "bad_name": "'two words' is not a valid name",
    "hook_raises": "its hook for methods failed: ZeroDivisionError",
    "hook_exits": "its hook for methods failed: SystemExit",
    "hook_interrupts": "its hook for methods failed: ImportError: it raised KeyboardInterrupt, which nobody had pressed",
    "hook_endless": "its hook for methods failed: InvalidInput: it offers more than 10,000; return a list of them",
    "unseen": "'a\\x1b[31m' is not a valid name",
    "nothing": "offers nothing; does it define a @hookimpl function?",
    "thief": "its method 'f2ba' is left out: plugin 'bilevelbench' has that name already",
    "zz_late": "its method 'acme_gd' is left out: plugin 'acme' has that name already; rename one",
}


def install(site, name, source, version="1.2"):
    """A distribution as pip leaves it: a package and its metadata."""
    package = site / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(source)
    (package / "acme_suite.toml").write_text('algorithm = "all"\n[budget]\nsteps = 1\n')
    info = site / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[bilevelbench]\n{name} = {name}\n")
    return info


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    for name, source in PLUGINS.items():
        install(folder, name, source)
    return folder


def bilevelbench(site, *arguments):
    env = {**os.environ, "PYTHONPATH": str(site), "PYTHONWARNINGS": "error"}
    command = [sys.executable, "-m", "bilevelbench", *map(str, arguments)]
    return subprocess.run(command, env=env, capture_output=True, text=True, cwd=site)


# ---- distributions, in a process of their own


@pytest.mark.whole
def test_installed_plugins_are_found_and_broken_ones_are_named(site):
    done = bilevelbench(site, "list", "--json")
    assert done.returncode == 0, done.stderr
    listed = json.loads(done.stdout)
    plugins = {row["name"]: row["plugin"] for row in listed["methods"]}
    assert plugins["acme_gd"] == "acme 1.2"
    assert plugins["f2ba"].startswith("bilevelbench ")
    assert plugins["acme_chatty"] == "chatty 1.2"  # although it prints when it is imported
    assert {row["name"] for row in listed["suites"]} >= {"acme_suite", "quick"}
    warnings = done.stderr.splitlines()
    for plugin, words in WORDS.items():
        assert any(line.startswith(f"warning: plugin {plugin!r}: ") and words in line for line in warnings), plugin
    assert not any("Traceback" in line for line in warnings)


@pytest.mark.slow  # tests/testing/test_thirdparty.py runs one always
def test_an_installed_method_runs_in_a_worker_process(site, tmp_path):
    done = bilevelbench(site, "run", "-a", "acme_gd", "-p", "quadratic", "--steps", 3, "--jobs", 1, "-o", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    from bilevelbench.results.tables import load_results

    (row,) = load_results(tmp_path).runs.to_dict("records")
    assert (row["status"], row["plugin"], row["plugin_version"]) == ("budget", "acme", "1.2")


# ---- entry points, in this process


def points(site, monkeypatch, *names):
    monkeypatch.syspath_prepend(str(site))
    for name in names:
        monkeypatch.delitem(sys.modules, name, raising=False)
    found = [p for n in names for p in PathDistribution(site / f"{n}-1.2.dist-info").entry_points]
    return Registry.from_entry_points(found)


@pytest.mark.parametrize("name", WORDS)
def test_a_broken_plugin_leaves_the_others_alone(site, monkeypatch, name):
    monkeypatch.syspath_prepend(str(site))
    ours = [EntryPoint("bilevelbench", "bilevelbench_methods", "bilevelbench")]
    theirs = [p for n in (name, "acme") for p in PathDistribution(site / f"{n}-1.2.dist-info").entry_points]
    found = Registry.from_entry_points([*theirs, *ours])
    assert {"f2ba", "acme_gd"} <= set(found.algorithms)
    if name == "thief":  # without metadata the built-in plugin is not known to be that
        return
    sentences = [str(f) for f in found.failures]
    assert any(s.startswith(f"plugin {name!r}: ") and WORDS[name] in s for s in sentences), sentences
    with pytest.raises(UnknownName, match=r"unknown method 'f2bba'; did you mean 'f2ba'\?") as caught:
        found.algorithm("f2bba")
    assert WORDS[name] in str(caught.value)  # perhaps it was that plugin's


def test_the_built_in_plugins_come_through_the_same_door():
    found = Registry.from_entry_points()
    assert found.failures == []
    for table in (found.algorithms, found.problems, found.suites):
        assert {entry.plugin for entry in table.values()} == {"bilevelbench"}
    assert Registry.from_entry_points([]).algorithms == {}
    for entry in found.algorithms.values():
        assert entry.value.__module__.startswith("bilevelbench_methods")


def test_the_first_by_distribution_name_keeps_a_name(site, monkeypatch):
    found = points(site, monkeypatch, "zz_late", "acme")
    assert found.algorithms["acme_gd"].plugin == "acme"
    assert [f.plugin for f in found.failures] == ["zz_late"]


def test_an_entry_point_without_a_distribution(site, monkeypatch):
    monkeypatch.syspath_prepend(str(site))
    found = Registry.from_entry_points([EntryPoint("loose", "acme", "bilevelbench")])
    assert (found.algorithms["acme_gd"].plugin, found.algorithms["acme_gd"].version) == ("loose", "unknown")


def test_metadata_that_cannot_be_parsed(site, tmp_path, monkeypatch):
    info = install(tmp_path, "mangled", good(name="mangled"))
    (info / "entry_points.txt").write_text("[bilevelbench]\nthis line has no equals sign\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = Registry.from_entry_points()
    assert "f2ba" in found.algorithms
    assert any("mangled" in str(f) for f in found.failures)


def test_ctrl_c_during_an_import_is_not_a_failure_of_the_plugin(tmp_path, monkeypatch, request):
    install(tmp_path, "pressed", "import signal; signal.raise_signal(signal.SIGINT)")
    monkeypatch.syspath_prepend(str(tmp_path))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # who was started in the background ignores it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with pytest.raises(KeyboardInterrupt):
        Registry.from_entry_points([EntryPoint("pressed", "pressed", "bilevelbench")])


# ---- loose files


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"

    def write(text):
        path.write_text(text)
        return str(path)

    return write


def test_a_loose_file(file):
    name = file(good(name="mine"))
    entry = registry().algorithm(name)
    assert entry.value.name == "mine"
    assert entry.plugin == "mine.py"  # nobody's home folder goes into a table
    assert registry().algorithm(name).value is entry.value
    again = registry().algorithm(file(good(name="mine") + "\n# edited"))
    assert again.version != entry.version
    assert again.value is not entry.value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def broken(:", r"mine.py failed to load: SyntaxError: .*mine.py, line 1.*; fix the file"),
        ("raise RuntimeError('on purpose')", "failed to load: RuntimeError: on purpose"),
        ("import sys; sys.exit(9)", "failed to load: SystemExit: 9"),
        ("import no_such_module_anywhere", "failed to load: ModuleNotFoundError"),
        ("x = 1", "should hold one Algorithm class; it holds none"),
        (good("A", "a") + good("B", "b"), r"it holds A, B; name one as .*mine.py:CLASS"),
        ("from bilevelbench import Algorithm\nclass Half(Algorithm):\n    name = 'half'", "class Half has no `init`"),
        (good("Blank", "a b"), "'a b' is not a valid name"),
    ],
)
def test_loose_files_that_cannot_be_used(file, text, words):
    name = file(text)
    with pytest.raises(InvalidInput, match=words):
        registry().algorithm(name)


def test_one_class_of_several(file):
    name = file(good("A", "a") + good("B", "b"))
    assert registry().algorithm(f"{name}:B").value.name == "b"
    with pytest.raises(UnknownName, match=r"unknown class in .*mine.py 'C'; choose from A, B"):
        registry().algorithm(f"{name}:C")
    with pytest.raises(InvalidInput, match=r"problem file 'gone\.py' does not exist"):
        registry().problem("gone.py")


# ---- parameters


def test_parameters_are_checked_in_sentences():
    entry = registry().algorithm("f2ba")
    with pytest.raises(InvalidInput, match=r"f2ba has no parameter 'lamm'; did you mean 'lam'\?"):
        make(entry, {"lamm": 1})
    with pytest.raises(InvalidInput, match=r"f2ba: lam = -1: input should be greater than 0"):
        make(entry, {"lam": -1})
    with pytest.raises(InvalidInput, match=r"f2ba: .*K.* = 'many': input should be a valid integer"):
        make(entry, {"K": "many"})


def test_a_plugin_whose_own_validation_breaks_is_a_sentence(file):
    text = good(name="mine").replace(
        "    eta: float = 0.1", "    eta: float = 0.1\n    def model_post_init(self, _):\n        raise TypeError('oh')"
    )
    with pytest.raises(InvalidInput, match=r"mine: cannot be made from \{\}: TypeError: oh"):
        make(registry().algorithm(file(text)), {})


def test_faults_name_the_place_and_the_value():
    from pydantic import ValidationError

    with pytest.raises(ValidationError) as caught:
        Budget(steps=0, seconds=-1)
    assert "steps = 0: input should be greater than 0" in faults(caught.value)
    assert "seconds = -1" in faults(caught.value)


# ---- what there is


def test_everything_registered_can_be_described():
    rows = catalogue(registry())
    assert {"f2ba", "aid", "itd", "f2sa"} <= {row["name"] for row in rows["methods"]}
    assert all(row["what"] for kind in ("methods", "problems") for row in rows[kind])
    for row in rows["methods"] + rows["problems"]:
        facts = describe(registry(), row["name"])
        json.dumps(facts.as_dict())
        for parameter in facts.parameters:
            assert parameter["name"] in facts.as_text()
    f2ba = describe(registry(), "f2ba")
    assert f2ba.kind == "method"
    assert issubclass(registry().algorithm("f2ba").value, Algorithm)
    with pytest.raises(UnknownName, match="did you mean 'quadratic'"):
        describe(registry(), "quadratik")


def test_a_loose_file_can_be_described(file):
    facts = describe(registry(), file(good(name="mine")))
    assert (facts.name, facts.kind, facts.uses) == ("mine", "method", ["grad_f"])
    assert "Plain descent" in facts.as_text()
    problem = "from bilevelbench import Problem\nclass P(Problem):\n    '''Nothing.'''\n    name = 'p'\n"
    assert describe(registry(), file(problem)).kind == "problem"
    with pytest.raises(InvalidInput, match="SyntaxError"):
        describe(registry(), file("def :"))


@pytest.mark.parametrize(("name", "close"), [("F2BA", "f2ba"), ("f2BA", "f2ba"), ("ttsa", "TTSA"), ("Ttsaa", "TTSA")])
def test_suggestion_looks_past_case(name, close):
    assert suggestion(name, ["f2ba", "TTSA", "soba"]) == f"; did you mean {close!r}?"


def test_suggestion_of_nothing_close_is_the_list():
    assert suggestion("XYZ", ["f2ba", "TTSA"]) == "; choose from TTSA, f2ba"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("f2ba", ("f2ba", None)),
        ("dir/mine.py", ("dir/mine.py", None)),
        ("dir/mine.py:Mine", ("dir/mine.py", "Mine")),
        ("C:/mine.py:Mine", ("C:/mine.py", "Mine")),
        ("mine.py:", ("mine.py", "")),
    ],
)
def test_a_file_and_its_class(name, parts):
    assert file_and_class(name) == parts
    assert is_file(name) == parts[0].endswith(".py")


def test_a_file_that_raises_keyboard_interrupt_or_goes_elsewhere_does_so_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pressed.py").write_text("import os\nos.chdir('/')\nraise KeyboardInterrupt\n")
    with pytest.raises(InvalidInput, match="it raised KeyboardInterrupt, which nobody had pressed; fix the file"):
        registry().algorithm("pressed.py")
    assert Path.cwd() == tmp_path


def test_a_process_for_some_plugins_loads_no_others(site, monkeypatch):
    monkeypatch.syspath_prepend(str(site))
    for name in PLUGINS:
        monkeypatch.delitem(sys.modules, name, raising=False)
    chosen = registry_of(frozenset({"acme", "somebodys_file.py"}))
    assert chosen.algorithms.keys() >= {"f2ba", "aid", "acme_gd"}
    assert {entry.plugin for entry in chosen.algorithms.values()} == {"bilevelbench", "acme"}
    assert PLUGINS.keys() & sys.modules.keys() == {"acme"}
