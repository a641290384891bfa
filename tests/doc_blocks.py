"""The fenced blocks of a Markdown page, and a way to run them as a reader would: from top to bottom, in one folder.

- ```python: run in one namespace a page. A block whose first line is `# NAME.py` is also written to that file.
- ```bash: run line by line; `bilevelbench` in this process, anything else in a shell. Every command has to end with 0.
- ```toml: a file, named by its first line, `# NAME.toml`.
- ```text: shown, never run: output, formulas, layouts.

A block below the line `<!-- not run: reason -->` is left out.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[^`]*)$")
_NOT_RUN = re.compile(r"<!-- not run: (?P<reason>.+?) -->")
_FILE = re.compile(r"# (?P<name>[\w.-]+\.(?:py|toml))$")

LANGUAGES = ("python", "bash", "toml", "text")


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str
    reason: str = ""
    """why it is not run"""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def file(self) -> str:
        """The file that it shows, if any."""
        match = _FILE.fullmatch(self.text.partition("\n")[0])
        return match["name"] if match else ""

    def commands(self) -> list[str]:
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def blocks(path: Path, name: str) -> list[Block]:
    """All fenced blocks of a page, in order."""
    found: list[Block] = []
    inside: list[str] | None = None
    start, language, indent, reason = 0, "", 0, ""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        fence = _FENCE.match(line)
        if inside is not None:
            if fence and not fence["language"].strip():
                found.append(Block(name, start, language, "\n".join(inside) + "\n", reason))
                inside, reason = None, ""
            else:
                inside.append(line[indent:])
        elif fence:
            inside, start, language, indent = [], number, fence["language"].strip(), len(fence["indent"])
        elif line.strip():
            match = _NOT_RUN.search(line)
            reason = match["reason"] if match else ""  # it has to stand right above its block
    assert inside is None, f"{name}:{start}: the block has no end"
    return found


class Failed(AssertionError):
    """A block that does not do what its page says."""


def run_blocks(page: list[Block], bilevelbench: Callable[[list[str]], tuple[int, str]]) -> Iterator[tuple[str, str]]:
    """Run the blocks of one page in the current folder; yields each command with what it printed."""
    module = types.ModuleType("page_under_test")
    sys.modules[module.__name__] = module  # dataclasses and pydantic look their annotations up there
    try:
        for block in page:
            if block.reason or block.language == "text":
                continue
            if block.file:
                Path(block.file).write_text(block.text, encoding="utf-8")
            if block.language == "python":
                yield str(block), _run_python(block, module)
            elif block.language == "bash":
                for command in block.commands():
                    code, printed = _run_command(command, bilevelbench)
                    if code:
                        raise Failed(f"{block}: `{command}` ended with {code}:\n{printed[-3000:]}")
                    yield command, printed
    finally:
        del sys.modules[module.__name__]


def _run_python(block: Block, module: types.ModuleType) -> str:
    out = io.StringIO()
    code = compile("\n" * block.line + block.text, block.page, "exec")  # so that a traceback has the page's line
    with contextlib.redirect_stdout(out):
        exec(code, module.__dict__)
    return out.getvalue()


def _run_command(command: str, bilevelbench: Callable[[list[str]], tuple[int, str]]) -> tuple[int, str]:
    words = shlex.split(command, comments=True)
    if words[0] == "bilevelbench":
        return bilevelbench(words[1:])
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr
