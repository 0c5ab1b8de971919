"""How two runs of a test suite differ, read from pytest's own reports."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conformance import __main__ as conformance
from tests.conformance.__main__ import files
from tests.conformance.verdicts import Told, Verdict, counted, differences, read, worse

_REPORT = """<?xml version="1.0"?><testsuites><testsuite name="pytest">
<testcase classname="tests.test_1" name="test_a" time="0.1"/>
<testcase classname="tests.test_1" name="test_b"><failure message="no nodes&#10;more"/></testcase>
<testcase classname="tests.test_1" name="test_c"><skipped message="needs auto-config"/></testcase>
<testcase classname="tests.test_2" name="test_d"><error message="set-up">text</error></testcase>
<testcase classname="tests.test_2" name="test_e"/>
<testcase classname="tests.test_2" name="test_e"><error>clearing up
failed</error></testcase>
</testsuite></testsuites>"""


def test_a_report_is_read(tmp_path: Path) -> None:
    """Errors outside of a test are failures of it, whatever it said itself."""
    report = tmp_path / "told.xml"
    report.write_text(_REPORT)
    assert read(report) == {
        "tests.test_1::test_a": Told(Verdict.PASSED),
        "tests.test_1::test_b": Told(Verdict.FAILED, "no nodes"),
        "tests.test_1::test_c": Told(Verdict.SKIPPED, "needs auto-config"),
        "tests.test_2::test_d": Told(Verdict.FAILED, "set-up"),
        "tests.test_2::test_e": Told(Verdict.FAILED, "clearing up"),
    }
    assert counted(read(report)) == "1 passed, 3 failed, 1 skipped"


def test_only_what_differs_is_told() -> None:
    """A test that fails on both says nothing of virtual nodes; one that is missing was not run."""
    passed, failed = Told(Verdict.PASSED), Told(Verdict.FAILED, "why")
    bare = {"same": failed, "worse": passed, "better": failed, "gone": passed}
    virtual = {"same": failed, "worse": failed, "better": passed}
    pairs = differences(bare, virtual)
    assert pairs == {
        "worse": (passed, failed),
        "better": (failed, passed),
        "gone": (passed, Told(Verdict.SKIPPED, "it was not run")),
    }
    assert worse(pairs) == ["worse"]


def test_files_are_run_one_by_one(tmp_path: Path) -> None:
    """All of a folder in order; what is named as it is named."""
    for name in ("tests/b/test_2.py", "tests/b/test_1.py", "tests/test_3.py", "tests/lib.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()

    def names(*only: str) -> list[str]:
        return [str(file.relative_to(tmp_path)) for file in files(tmp_path, only)]

    assert names() == ["tests/b/test_1.py", "tests/b/test_2.py", "tests/test_3.py"]
    assert names("tests/test_3.py", "tests/b") == [
        "tests/test_3.py",
        "tests/b/test_1.py",
        "tests/b/test_2.py",
    ]


@contextmanager
def cluster(ended: list[str]) -> Iterator[None]:
    """One that notes that it was ended."""
    try:
        yield
    finally:
        ended.append("cluster")


def test_a_run_that_is_told_to_end_ends_its_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []

    def run(*_: object) -> dict[str, Told]:
        with cluster(ended):
            os.kill(os.getpid(), signal.SIGTERM)
        raise AssertionError("it went on")

    monkeypatch.setattr(conformance, "run", run)
    monkeypatch.setattr(sys, "argv", ["conformance", "suite", "--on", "bare"])
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as left:
            conformance.main()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert left.value.code == 128 + signal.SIGTERM
    assert ended == ["cluster"]


def test_what_was_found_is_written_down_by_name(tmp_path: Path) -> None:
    conformance._keep(tmp_path, {"b": Told(Verdict.FAILED, "why"), "a": Told(Verdict.PASSED)})
    assert (
        (tmp_path / "told.json").read_text()
        == """{
 "a": [
  "passed",
  ""
 ],
 "b": [
  "failed",
  "why"
 ]
}
"""
    )
