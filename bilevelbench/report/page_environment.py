"""What every HTML page is made with: what strangers wrote is escaped and visible, and nothing there may act for them."""

from __future__ import annotations

import functools
from typing import Any

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from bilevelbench.untrusted import visible


@functools.cache  # compiling the templates takes longer than filling them
def page_environment(package: str, **options: Any) -> Environment:
    """The templates of a package, for HTML."""
    return Environment(loader=PackageLoader(package), autoescape=True, finalize=_shown, **options)


def content_policy(scripts: str = "'none'", style: str = "'none'", images: str = "'none'") -> str:
    """The content security policy of a page: what is not named here a browser does not load, run or send."""
    return f"default-src 'none'; script-src {scripts}; style-src {style}; img-src {images}; base-uri 'none'; form-action 'none'"


def _shown(value: Any) -> Any:
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value
