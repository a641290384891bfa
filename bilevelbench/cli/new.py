"""`bilevelbench new`: a method or a problem that already works, as one file or as a distribution of its own."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import typer

from bilevelbench.errors import InvalidInput, UnknownName

KINDS = ("method", "problem")
_THIRD_PARTIES = {"torch", "numpy", "scipy", "pandas", "pydantic", "pytest", "bilevelbench"}

#: What a distribution holds: the path, and the template behind it. {kind} is method or problem.
_LAYOUT: dict[str, str] = {
    "pyproject.toml": "pyproject.toml.txt",
    "README.md": "README_{kind}.md.txt",
    ".gitignore": "gitignore.txt",
    ".github/workflows/ci.yml": "ci_{kind}.yml.txt",
    "bilevelbench_plugin_name/__init__.py": "init_{kind}.py.txt",
    "bilevelbench_plugin_name/plugin_name.py": "{kind}.py.txt",
    "tests/test_plugin_name.py": "test.py.txt",
}
#: What a method has beside that: a problem has no published results to stand beside.
_OF_METHODS = {".github/workflows/board.yml": "board_method.yml.txt"}


def new_plugin(kind: str, name: str, file: bool = False, folder: Path = Path()) -> Path:
    """Write it below `folder`, and return its file or folder. Nothing that exists is overwritten."""
    if kind not in KINDS:
        raise UnknownName("kind of plugin", kind, KINDS)
    words = _words(kind, name)
    if file:
        path = folder / f"{name}.py"
        _write({path: _filled(f"{kind}.py.txt", words)}, path)
        return path
    root = folder / words["plugin-name"]
    layout = {**_LAYOUT, **(_OF_METHODS if kind == "method" else {})}
    texts = {root / _fill(path, words): _filled(template.format(kind=kind), words) for path, template in layout.items()}
    _write(texts, root)
    return root


def next_steps(kind: str, name: str, path: Path) -> str:
    """What to type now."""
    option = "-a" if kind == "method" else "-p"
    other = "-p quadratic" if kind == "method" else "-a f2ba"
    if path.suffix == ".py":
        return (
            f"wrote {path}; now:\n  bilevelbench check {path}\n  bilevelbench run {option} {path} {other} --steps 100 -o out\n"
            "  bilevelbench report out --format html"
        )
    return (
        f"wrote {path}; now:\n  pip install -e {path}\n  bilevelbench check {name}\n"
        f"  bilevelbench run {option} {name} {other} --steps 100 -o out\n  bilevelbench report out --format html"
    )


def _words(kind: str, name: str) -> dict[str, str]:
    """What stands for the template's words, or a sentence on the name."""
    from bilevelbench.discovery.registry import registry

    plain = re.sub(r"\W+", "_", name.strip()).strip("_").lower() or "mine"
    plain = plain if plain[0].isalpha() else f"m_{plain}"
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        tip = f"my_{plain}" if keyword.iskeyword(plain) else plain
        raise InvalidInput(
            f"{name!r} is not a valid name for a Python file: lower-case letters, digits and _; try {tip!r}"
        )
    if name in sys.stdlib_module_names or name in _THIRD_PARTIES:
        raise InvalidInput(f"a file called {name}.py would hide the Python module {name!r}; try 'my_{name}'")
    tables: Mapping[str, Mapping[str, Any]] = {"method": registry().algorithms, "problem": registry().problems}
    if name in tables[kind]:
        owner = tables[kind][name]
        raise InvalidInput(
            f"there is a {kind} {name!r} already, of plugin {owner.plugin!r}; try {_free(name, tables[kind])!r}"
        )
    class_name = "".join(part.capitalize() for part in name.split("_"))
    if re.search(rf"\b{class_name}\b", _text(f"{kind}.py.txt")):
        raise InvalidInput(f"a class {class_name} would hide one that the file imports; try 'my_{name}'")
    package = f"bilevelbench_{name}"
    if _is_installed(package):
        raise InvalidInput(f"there is a package {package} already; try 'my_{name}'")
    hyphens = package.replace("_", "-")
    return {"PluginName": class_name, "bilevelbench_plugin_name": package, "plugin-name": hyphens, "plugin_name": name}


def _free(name: str, taken: Mapping[str, Any]) -> str:
    return next(tip for tip in (f"my_{name}", *(f"my_{name}_{n}" for n in range(2, 99))) if tip not in taken)


def _is_installed(package: str) -> bool:
    from importlib.util import find_spec

    if find_spec(package) is not None:
        return True
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True


def _text(template: str) -> str:
    return (files("bilevelbench.cli") / "scaffold" / template).read_text(encoding="utf-8")


def _filled(template: str, words: Mapping[str, str]) -> str:
    return _fill(_text(template), words)


def _fill(text: str, words: Mapping[str, str]) -> str:
    return re.sub("|".join(words), lambda match: words[match[0]], text)  # the longer words stand before those in them


def _write(texts: Mapping[Path, str], target: Path) -> None:
    if target.exists() or target.is_symlink():
        raise InvalidInput(
            f"{target} exists already and is left as it is; choose another name, or another place with -o"
        )
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise InvalidInput(f"cannot write {error.filename}: {error.strerror}; choose another place with -o") from None


def new(
    kind: Annotated[str, typer.Argument(help="method or problem.")],
    name: Annotated[str, typer.Argument(help="Its name: lower-case letters, digits and underscores.")],
    file: Annotated[bool, typer.Option("--file", help="One loose file instead of a distribution.")] = False,
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to write into.")] = Path(),
) -> None:
    """Write a method or a problem that already works: a distribution of its own, or one file."""
    typer.echo(next_steps(kind, name, new_plugin(kind, name, file, out)))
