"""Where a data file is found, in which order, and what is refused; and `bilevelbench data`."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import urllib.error
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

from bilevelbench import InvalidInput
from bilevelbench.cli.data import fetch_files, list_files, verify_files
from bilevelbench.discovery.entry import Entry
from bilevelbench.errors import UnknownName
from bilevelbench.model.data_file import DataFile, cache_folder

CONTENT = b"1,2,3\n" * 1000
SHA256 = hashlib.sha256(CONTENT).hexdigest()


def data_file(**more) -> DataFile:
    return DataFile(name="numbers", path="toys/numbers.csv", sha256=SHA256, licence="CC0", **more)


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No folder of data, an empty cache, no network."""
    monkeypatch.delenv("BILEVELBENCH_DATA", raising=False)
    monkeypatch.setenv("BILEVELBENCH_CACHE", str(tmp_path / "cache"))

    def refuse(*_, **__):
        raise urllib.error.URLError("Network is unreachable")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Addresses and what they send."""
    sends: dict[str, bytes] = {}
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: io.BytesIO(sends[url]))
    return sends


def put(path: Path, content: bytes = CONTENT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def installed(folder: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution `toy-data`, whose module cannot be imported, with the file inside."""
    path = put(folder / "site" / "toy_data" / "csv" / "numbers.csv", content)
    put(folder / "site" / "toy_data" / "__init__.py", b"raise RuntimeError('nobody should import this')")
    put(
        folder / "site" / "toy_data-1.0.dist-info" / "METADATA",
        b"Metadata-Version: 2.1\nName: toy-data\nVersion: 1.0\n",
    )
    record = b"toy_data/__init__.py,,\ntoy_data/csv/other_numbers.csv,,\ntoy_data/csv/numbers.csv,,\n"
    put(folder / "site" / "toy_data-1.0.dist-info" / "RECORD", record)
    monkeypatch.syspath_prepend(str(folder / "site"))
    return path


def bundled(folder: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    put(folder / "plugins" / "toy_plugin" / "__init__.py", b"")
    monkeypatch.syspath_prepend(str(folder / "plugins"))
    return put(folder / "plugins" / "toy_plugin" / "data" / "numbers.csv", content)


# ---------------------------------------------------------------------------------------------- places


def test_the_six_places_in_their_order(tmp_path, monkeypatch, online):
    """Each place, from the last to the first, hides those behind it."""
    monkeypatch.setenv("XDG_DATA_DIRS", f"{tmp_path / 'nothing'}{os.pathsep}{tmp_path / 'share'}")
    file = data_file(
        bundled="toy_plugin/data/numbers.csv",
        inside="toy-data/csv/numbers.csv",
        shared="toy-numbers: toys/numbers.gz",
        url="https://toys.test/n",
    )
    assert file.locate() is None
    online["https://toys.test/n"] = gzip.compress(CONTENT)
    assert file.read() == CONTENT
    online.clear()  # from now on the cache has it
    assert file.read() == CONTENT
    assert file.locate().place == "cache"
    system = put(tmp_path / "share" / "toys" / "numbers.gz", gzip.compress(CONTENT))
    assert (file.locate().place, file.locate().path) == ("system package toy-numbers", system)
    assert file.read() == CONTENT
    inside = installed(tmp_path, CONTENT, monkeypatch)
    assert (file.locate().place, file.locate().path) == ("package toy-data", inside)
    beside = bundled(tmp_path, CONTENT, monkeypatch)
    assert (file.locate().place, file.locate().path) == ("bundled", beside)
    mine = put(tmp_path / "mine" / "toys" / "numbers.csv")
    monkeypatch.setenv("BILEVELBENCH_DATA", str(tmp_path / "mine"))
    assert (file.locate().place, file.locate().path) == ("BILEVELBENCH_DATA", mine)
    other = put(tmp_path / "other.gz", gzip.compress(CONTENT))
    assert file.locate(other).path == other
    assert file.read(other) == file.read() == CONTENT


def test_a_folder_may_hold_the_file_itself(tmp_path, monkeypatch):
    put(tmp_path / "flat" / "numbers.csv")
    monkeypatch.setenv("BILEVELBENCH_DATA", str(tmp_path / "flat"))
    assert data_file().read() == CONTENT


def test_a_package_is_searched_without_being_imported(tmp_path, monkeypatch):
    installed(tmp_path, CONTENT, monkeypatch)
    assert data_file(inside="toy-data/numbers.csv").read() == CONTENT


def test_an_explicit_path_is_not_replaced_by_another_place(tmp_path, monkeypatch):
    put(tmp_path / "mine" / "toys" / "numbers.csv")
    monkeypatch.setenv("BILEVELBENCH_DATA", str(tmp_path / "mine"))
    with pytest.raises(InvalidInput, match=r"no toys/numbers.csv at .*elsewhere; give the file or the folder"):
        data_file().read(tmp_path / "elsewhere")


@pytest.mark.parametrize("url", ["", "https://toys.test/n"])
def test_offline_one_sentence_names_all_six(tmp_path, monkeypatch, url):
    file = data_file(inside="toy-data/numbers.csv", shared="toy-numbers: toys/numbers.csv", url=url)
    with pytest.raises(InvalidInput) as unset:
        file.read()
    monkeypatch.setenv("BILEVELBENCH_DATA", str(tmp_path))
    with pytest.raises(InvalidInput) as empty:
        file.read()
    for error in (unset, empty):
        text = str(error.value)
        assert "\n" not in text
        system = "system package toy-numbers is not installed"
        for part in ("'numbers'", "path", "bundled", "package toy-data", system, str(cache_folder()), "network failed"):
            assert part in text
        assert ("Network is unreachable" if url else "no address is known") in text
        for way in (
            "`pip install --no-deps toy-data`",
            "install the system package toy-numbers",
            "set BILEVELBENCH_DATA to",
        ):
            assert way in text
        assert ("`bilevelbench data fetch numbers`" in text) == bool(url), "without an address it would fetch nothing"
    assert "BILEVELBENCH_DATA is not set" in str(unset.value)
    assert f"BILEVELBENCH_DATA ({tmp_path}) does not hold toys/numbers.csv" in str(empty.value)


def test_cache_folder(monkeypatch, tmp_path):
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("BILEVELBENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "bilevelbench"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "bilevelbench"


# ---------------------------------------------------------------------------------------------- checksums

DAMAGED = {
    "truncated": CONTENT[:-1],
    "one bit": CONTENT[:500] + bytes([CONTENT[500] ^ 1]) + CONTENT[501:],
    "empty": b"",
    "truncated gzip": gzip.compress(CONTENT)[:-9],
    "longer": CONTENT + b"\n",
}


@pytest.mark.parametrize("raw", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_refused_wherever_it_lies(tmp_path, monkeypatch, online, raw):
    online["https://toys.test/n"] = raw
    file = data_file(bundled="toy_plugin/data/numbers.csv", inside="toy-data/numbers.csv", url="https://toys.test/n")
    with pytest.raises(InvalidInput, match=r"what https://toys.test/n sent is damaged"):
        file.read()
    assert not list(tmp_path.rglob("cache/*")), "what was refused is not kept"
    file.fetch(put(tmp_path / "good.csv"))
    put(file.locate().path, raw)
    with pytest.raises(InvalidInput, match=r"cache.* is damaged.*delete it, and `bilevelbench data fetch numbers`"):
        file.read()
    installed(tmp_path, raw, monkeypatch)
    with pytest.raises(InvalidInput, match=r"toy_data/csv/numbers.csv is damaged"):
        file.read()
    bundled(tmp_path, raw, monkeypatch)
    with pytest.raises(InvalidInput, match=r"toy_plugin/data/numbers.csv is damaged.*install the plugin again"):
        file.read()
    monkeypatch.setenv("BILEVELBENCH_DATA", str(tmp_path / "mine"))
    put(tmp_path / "mine" / "toys" / "numbers.csv", raw)
    with pytest.raises(InvalidInput, match=r"mine/toys/numbers.csv is damaged"):
        file.read()
    with pytest.raises(InvalidInput, match=r"explicit.csv is damaged"):
        file.read(put(tmp_path / "explicit.csv", raw))


def test_a_message_names_both_checksums(tmp_path):
    with pytest.raises(InvalidInput) as error:
        data_file().read(put(tmp_path / "other.csv", b"other"))
    assert SHA256 in str(error.value)
    assert hashlib.sha256(b"other").hexdigest() in str(error.value)


def test_the_cache_holds_the_content_and_leaves_no_half_files(tmp_path, online):
    online["https://toys.test/n"] = gzip.compress(CONTENT)
    path = data_file(url="https://toys.test/n").fetch()
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == [path]
    assert path.read_bytes() == CONTENT


def test_a_cache_that_cannot_be_written_costs_no_run(tmp_path, monkeypatch, online):
    online["https://toys.test/n"] = CONTENT
    monkeypatch.setenv("BILEVELBENCH_CACHE", str(put(tmp_path / "a file")))
    file = data_file(url="https://toys.test/n")
    assert file.read() == CONTENT
    with pytest.raises(InvalidInput, match=r"a file cannot be written: .*set BILEVELBENCH_CACHE"):
        file.fetch()


# ---------------------------------------------------------------------------------------------- the command


class Plugins:
    """A registry of two problems that read the same file."""

    def __init__(self, sums: DataFile, means: DataFile) -> None:
        files = {"sums": sums, "means": means}
        self.problems = {name: Entry(SimpleNamespace(data_files=(f,)), "toys", "1") for name, f in files.items()}
        self.problems["quadratic"] = Entry(SimpleNamespace(data_files=()), "toys", "1")  # reads no file


@pytest.fixture
def plugins() -> Plugins:
    file = data_file(url="https://toys.test/n")
    return Plugins(file, file)


def test_list(plugins, tmp_path, monkeypatch):
    (row,) = list_files(plugins)
    assert row == {"name": "numbers", "problems": "means, sums", "place": "", "path": "", "licence": "CC0"}
    path = put(tmp_path / "mine" / "numbers.csv")
    monkeypatch.setenv("BILEVELBENCH_DATA", str(tmp_path / "mine"))
    (row,) = list_files(plugins)
    assert (row["place"], row["path"]) == ("BILEVELBENCH_DATA", str(path))


def test_fetch_and_verify(plugins, online):
    assert [(row["ok"], row["seen"]) for row in verify_files(plugins, [])] == [(None, "not here")]
    online["https://toys.test/n"] = CONTENT
    (row,) = fetch_files(plugins, ["numbers"])
    assert row["place"] == "cache"
    online.clear()
    assert fetch_files(plugins, []) == [row], "what is there is not fetched again"
    assert [row["ok"] for row in verify_files(plugins, ["numbers"])] == [True]
    Path(row["path"]).write_bytes(CONTENT[:-1])
    (bad,) = verify_files(plugins, [])
    assert bad["ok"] is False
    assert "damaged" in bad["seen"]
    with pytest.raises(InvalidInput, match="damaged"):
        fetch_files(plugins, [])


def test_fetch_from_a_file(plugins, tmp_path):
    (row,) = fetch_files(plugins, ["numbers"], put(tmp_path / "n.gz", gzip.compress(CONTENT)))
    assert Path(row["path"]).read_bytes() == CONTENT
    with pytest.raises(InvalidInput, match=r"bad\.csv is damaged"):
        fetch_files(plugins, ["numbers"], put(tmp_path / "bad.csv", b"1"))


def test_names(plugins):
    with pytest.raises(UnknownName, match="unknown data file 'number'; did you mean 'numbers'"):
        verify_files(plugins, ["number"])
    clash = Plugins(data_file(), DataFile("numbers", "n", "0" * 64, "CC0"))
    with pytest.raises(InvalidInput, match="'means' and 'sums' mean different files by the name 'numbers'"):
        list_files(clash)
