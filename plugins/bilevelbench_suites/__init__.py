"""The built-in suites, one TOML file each; they come in through the same hook as anyone else's."""

from pathlib import Path

from bilevelbench import hookimpl


@hookimpl
def bilevelbench_suites() -> list[Path]:
    return sorted(Path(__file__).parent.glob("*.toml"))
