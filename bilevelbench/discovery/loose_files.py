"""Methods and problems in loose files: `FILE.py` and `FILE.py:Class`."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import inspect
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from bilevelbench.discovery.entry import Entry, PluginKind, load_apart, reason_of, wrong_class
from bilevelbench.errors import InvalidInput, UnknownName
from bilevelbench.model.algorithm import Algorithm
from bilevelbench.model.problem import Problem


def is_file(name: str) -> bool:
    return name.endswith(".py") or ".py:" in name


def file_and_class(name: str) -> tuple[str, str | None]:
    """`FILE.py:Class` -> `FILE.py` and `Class`; without a colon there is no class."""
    if ".py:" not in name:
        return name, None
    file, _, wanted = name.rpartition(":")
    return file, wanted


def classes_in_file(name: str) -> list[type]:
    """The methods and problems that a loose file defines; classes whose names start with an underscore are private."""
    file, wanted = file_and_class(name)
    module = load_file(Path(file).resolve())
    classes = {
        cls.__name__: cls
        for cls in vars(module).values()
        if inspect.isclass(cls) and issubclass(cls, Algorithm | Problem) and cls.__module__ == module.__name__
    }
    if wanted is not None:
        if wanted not in classes:
            raise UnknownName(f"class in {file}", wanted, classes)
        chosen = [classes[wanted]]
    else:
        chosen = [cls for cls in classes.values() if not cls.__name__.startswith("_")]
    if not chosen:
        raise InvalidInput(f"no Algorithm and no Problem class in {file}; define one, or check another file")
    for cls in chosen:
        if wrong := wrong_class(cls, Algorithm if issubclass(cls, Algorithm) else Problem):
            raise InvalidInput(f"{file}: {wrong}")
    return chosen


def class_from_file(kind: PluginKind, name: str, base: type) -> Entry[Any]:
    """A class from a loose file. Its version is a hash of the file, so that an edited file is a new method."""
    file, wanted = file_and_class(name)
    if not os.path.isfile(file):  # which is no error for a name that no file can have
        raise InvalidInput(f"{kind} file {file!r} does not exist; check the path")
    path = Path(file).resolve()
    module = load_file(path)
    classes = {
        c.__name__: c
        for c in vars(module).values()
        if inspect.isclass(c) and issubclass(c, base) and c is not base and c.__module__ == module.__name__
    }
    if wanted is not None:
        if wanted not in classes:
            raise UnknownName(f"class in {file}", wanted, classes)
        chosen = classes[wanted]
    elif len(classes) == 1:
        (chosen,) = classes.values()
    else:
        there = f"holds {', '.join(sorted(classes))}; name one as {file}:CLASS" if classes else "holds none"
        raise InvalidInput(f"{file} should hold one {base.__name__} class; it {there}")
    wrong = wrong_class(chosen, base)
    if wrong:
        raise InvalidInput(f"{file}: {wrong}")
    return Entry(chosen, path.name, hashlib.sha256(path.read_bytes()).hexdigest()[:12])


@functools.cache
def _load_version(path: Path, digest: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"bilevelbench_file_{digest}", path)
    if spec is None or spec.loader is None:
        raise InvalidInput(f"{path} cannot be loaded as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # dataclasses and pydantic look their module up by name
    try:
        load_apart(functools.partial(spec.loader.exec_module, module))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        del sys.modules[module.__name__]
        raise InvalidInput(f"{path} failed to load: {reason_of(error)}; fix the file") from error
    return module


def load_file(path: Path) -> ModuleType:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}") from None
    return _load_version(path, hashlib.sha256(str(path).encode() + content).hexdigest()[:12])
