"""Where a site leads to: its repository and documentation, how to cite, install and submit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.metadata import version

from bilevelbench.errors import InvalidInput

#: The paper whose tables and experiments the site holds against measurements.
PAPER = "https://arxiv.org/abs/2306.14853"

_ADDRESS = re.compile(r"https?://[\w.:/~%-]+")


@dataclass(frozen=True)
class Links:
    """Addresses that differ from site to site; what is empty is not linked. `docs` may be a file beside the pages."""

    repository: str = ""
    docs: str = ""
    address: str = ""

    def __post_init__(self) -> None:
        for option in ("repository", "address"):
            value = getattr(self, option)
            if value and not _ADDRESS.fullmatch(value):
                raise InvalidInput(
                    f"--{option} {value!r} is not an address of the web; give one as https://example.org/name"
                )
        if ":" in self.docs and not _ADDRESS.fullmatch(self.docs):
            raise InvalidInput(f"--docs {self.docs!r} is neither an address nor a path; give docs/index.html, say")

    def source(self, path: str) -> str:
        """The address of a file of the built-in methods; empty for what is not one of them, or without a repository."""
        ours = path.startswith("bilevelbench_methods/")
        return f"{self.repository.rstrip('/')}/blob/HEAD/plugins/{path}" if self.repository and ours else ""

    @property
    def install(self) -> str:
        return f"pip install git+{self.repository}" if self.repository else "pip install ."


#: Of a site that nobody has told its addresses.
NO_LINKS = Links()


def citation() -> str:
    """BibTeX of the software and of the paper; the same as in CITATION.cff."""
    return f"""\
@software{{bilevelbench,
  author  = {{{{The bilevelbench developers}}}},
  title   = {{bilevelbench: benchmarks for bilevel optimisation whose counts can be trusted}},
  version = {{{version("bilevelbench")}}},
}}

@article{{chen2025near,
  author  = {{Chen and Ma and Zhang}},
  title   = {{Near-Optimal Nonconvex-Strongly-Convex Bilevel Optimization with Fully First-Order Oracles}},
  journal = {{Journal of Machine Learning Research}},
  year    = {{2025}},
  url     = {{{PAPER}}},
}}"""
