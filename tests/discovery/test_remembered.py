"""The remembered catalogue: used while nothing has changed, and never when anything has."""

from __future__ import annotations

import os
import sys

import pytest

from bilevelbench.discovery.remembered import remember, remembered

ROWS = {"methods": [{"name": "acme"}], "problems": [], "suites": [], "executors": []}


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A cache, and an installed plugin: the folder of its package."""
    monkeypatch.setenv("BILEVELBENCH_CACHE", str(tmp_path / "cache"))
    site = tmp_path / "site-packages"
    package, info = site / "acme_list", site / "acme_list-1.0.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").write_text("")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme_list\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[bilevelbench]\nacme_list = acme_list\n")
    monkeypatch.setattr(sys, "path", [str(site), *sys.path])
    return package


def the_file(plugin):
    (file,) = (plugin.parents[1] / "cache").iterdir()
    return file


def test_what_is_remembered_comes_back(plugin):
    assert remembered() is None
    remember(ROWS)
    assert remembered() == ROWS
    assert "acme_list" not in sys.modules


def edit(plugin):
    os.utime(plugin / "__init__.py", ns=(0, 0))


def add_a_file(plugin):
    (plugin / "more.toml").write_text("")


def new_version(plugin):
    (plugin.parent / "acme_list-1.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: acme_list\nVersion: 1.1\n"
    )


def install_a_dependency(plugin):
    (plugin.parent / "dependency").mkdir()
    os.utime(plugin.parent, ns=(0, 0))


def remove_the_plugin(plugin):
    sys.path.remove(str(plugin.parent))


def lose_the_package(plugin):
    plugin.rename(plugin.with_name("elsewhere"))


@pytest.mark.parametrize(
    "change", [edit, add_a_file, new_version, install_a_dependency, remove_the_plugin, lose_the_package]
)
def test_a_change_forgets(plugin, change):
    remember(ROWS)
    change(plugin)
    assert remembered() is None


@pytest.mark.parametrize("damage", [lambda text: text[:-5], lambda text: text.replace(b"acme", b"acne"), lambda _: b""])
def test_damage_forgets(plugin, damage):
    remember(ROWS)
    file = the_file(plugin)
    file.write_bytes(damage(file.read_bytes()))
    assert remembered() is None


def test_a_cache_that_cannot_be_written_is_no_error(plugin, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("BILEVELBENCH_CACHE", str(tmp_path / "file"))
    remember(ROWS)
    assert remembered() is None
