"""Every page has a content security policy, and nothing in it that the policy would stop."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from bilevelbench.report.contents import Report
from bilevelbench.report.formats import html

pytestmark = pytest.mark.whole  # whole sites


@pytest.fixture(scope="module")
def pages(everything):
    """By name: those of a site, and a report with figures of all kinds."""
    data, site = everything
    texts = {str(path.relative_to(site)): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    return texts | {"report": html.document(Report(data.results["tuned"], data.rates))}


def policy(text):
    (found,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', text)
    assert text.index("Content-Security-Policy") < min(
        text.find(tag) % len(text) for tag in ("<script", "<style", "<link")
    )
    return dict(rule.split(" ", 1) for rule in found.replace("&#39;", "'").split("; "))


def test_every_page_has_a_policy_that_allows_nothing_by_default(pages):
    for name, text in pages.items():
        rules = policy(text)
        assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'", name
        assert "unsafe" not in str(rules), name
        assert "http" not in str(rules), name


def test_a_report_runs_no_script_and_names_its_style_by_hash(pages):
    text = pages["report"]
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy(text)["script-src"] == "'none'"
    assert policy(text)["style-src"] == f"'sha256-{digest}'"
    assert "<svg" in text


def test_nothing_is_inline_that_a_policy_stops(pages):
    for name, text in pages.items():
        for tag in re.findall(r"<[a-zA-Z][^<>]*>", text):
            assert not re.search(r"\s(on\w+|style)\s*=", re.sub(r'"[^"]*"', '""', tag)), (name, tag)
            assert not tag.startswith("<script") or "src=" in tag, (name, tag)
        assert text.count("<style") == (name == "report")
