"""Data files that are damaged, or made to do damage, are refused with a sentence."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import lzma
import urllib.request

import pytest
from fuzzing import EXAMPLES, mutated_bytes, survives
from hypothesis import strategies as st

from bilevelbench.errors import InvalidInput, MissingData
from bilevelbench.model.data_file import DataFile, Found, decompressed

CONTENT = b"".join(b"%d,%d,%d\n" % (n, n * n, n**3) for n in range(300))
FILE = DataFile(
    name="numbers",
    path="numbers.csv",
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    licence="CC0",
    url="http://nowhere/x",
)
PACKED = {"plain": CONTENT, "gzip": gzip.compress(CONTENT, mtime=0), "xz": lzma.compress(CONTENT)}


@EXAMPLES
def test_damaged_files(examples, tmp_path):
    def read(content):
        (tmp_path / "numbers.csv").write_bytes(content)
        assert FILE.check(Found("path", tmp_path / "numbers.csv")) == CONTENT

    survives(examples, st.one_of(st.binary(), *map(mutated_bytes, PACKED.values())), read)


@pytest.mark.parametrize("kind", list(PACKED))
def test_whole_files_are_read_however_they_are_packed(kind, tmp_path):
    (tmp_path / "numbers.csv").write_bytes(PACKED[kind])
    assert FILE.check(Found("path", tmp_path / "numbers.csv")) == CONTENT


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress], ids=["gzip", "xz"])
def test_what_is_packed_is_unpacked_as_far_as_the_limit(pack):
    """A file of a few kilobytes that holds gigabytes is given up when it has shown more than any data file has."""
    zeros = bytes(2**20)
    assert decompressed(pack(zeros), most=2**20) == zeros
    with pytest.raises(InvalidInput, match=r"more than 1,048,575 bytes when it is unpacked"):
        decompressed(pack(zeros), most=2**20 - 1)


class CutOff(io.BytesIO):
    def read(self, *_):
        raise http.client.IncompleteRead(b"1,2", 97)


def test_an_answer_that_is_cut_off_is_a_sentence(monkeypatch, tmp_path):
    monkeypatch.delenv("BILEVELBENCH_DATA", raising=False)
    monkeypatch.setenv("BILEVELBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(urllib.request, "urlopen", lambda url, timeout: CutOff())
    with pytest.raises(MissingData, match=r"the network failed \(IncompleteRead\(3 bytes read, 97 more expected\)\)"):
        FILE.read()
