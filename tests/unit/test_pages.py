"""The documentation site: every page has its place, and a diagram is drawn from its words."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "packaging"))
    for name in ("pages", "tools"):
        sys.modules.pop(name, None)
    import pages  # type: ignore[import-not-found]  # a script beside the package

    return pages  # type: ignore[no-any-return]


def test_every_page_has_its_place(pages: ModuleType) -> None:
    """A page that stands in no chapter would end the build; it is found here, where nothing is built."""
    listed = {name for names in pages.CHAPTERS.values() for name in names.split()} | {"index"}
    written = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert written - listed == set()
    contents = pages.contents()
    for page in written:
        assert f"\ndocs/{page}\n" in contents


def test_what_is_linked_to_is_copied(pages: ModuleType, tmp_path: Path) -> None:
    """Links out of docs/ lead to files that are staged as well."""
    pages.stage(tmp_path, str)
    out = re.compile(r"\]\((\.\./[^)#\s]+)")
    links = {
        (page, link) for page in (tmp_path / "docs").glob("*.md") for link in out.findall(page.read_text())
    }
    assert links
    assert [(page.name, link) for page, link in links if not (page.parent / link).exists()] == []


def test_a_diagram_keeps_every_arrow(pages: ModuleType) -> None:
    """Each transition of the phases' diagram is an edge of the graph, with what is written at it."""
    text = (ROOT / "docs/concepts.md").read_text(encoding="utf-8")
    words = pages.DIAGRAM.search(text)[1]
    edges = re.findall(r'^"(.+)" -> "(.+)" \[label=" (.+) "\]$', pages.graph(words), re.M)
    assert len(edges) == words.count("-->") > 20
    assert ("parked", "returning", "host free again") in edges
