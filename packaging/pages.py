"""Builds the documentation site into dist/docs: the repository's own pages, with search, links checked.

`make docs` runs it. The pages are copied as they lie in the repository, so a link that works there works
here; one that leads nowhere ends the build. Nothing is loaded from another host when the site is read.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tools import ROOT, BuildError, commit_s, tools_python

OUT = ROOT / "dist/docs"
FRONT = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
# What pages link to beside other pages.
BESIDE = ("docs", "config", "LICENSE")
# The order in which a reader meets the pages; a page that is missing here ends the build.
CHAPTERS = {
    "Install and run": "install operations guest-image slurm policy images site-examples salt openstack "
    "htcondor packages",
    "Every day": "cli metrics web troubleshooting workloads mpi upgrading checkpoints devices job-machines "
    "readiness replay",
    "How it works": "concepts glossary papers performance",
    "Take part": "lab soak conformance writing-a-policy writing-a-driver",
}
DIAGRAM = re.compile(r"^```mermaid\nstateDiagram-v2\n(.*?)^```$", re.M | re.S)
_CONF = """
project = "backfill"
author = copyright = "the authors of backfill"
extensions = ["myst_parser", "sphinx_copybutton"]
root_doc = "README"
html_theme = "furo"
html_title = "backfill"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
myst_heading_anchors = 4
# `$ ` before a command is not copied.
copybutton_prompt_text = "$ "
"""


def contents() -> str:
    """Return the chapters as Sphinx's hidden tables of contents, for the end of the front page."""
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    trees = {
        title: [f"docs/{page}" for page in names.split() if page in pages]
        for title, names in CHAPTERS.items()
    }
    trees["Take part"] += ["CONTRIBUTING", "CHANGELOG"]
    decisions = sorted(path.stem for path in (ROOT / "docs/decisions").glob("*.md"))
    trees["Decisions"] = ["docs/index", *(f"docs/decisions/{name}" for name in decisions)]
    return "\n".join(
        f"```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(names) + "\n```\n"
        for title, names in trees.items()
    )


def stage(folder: Path, draw: Callable[[str], str]) -> None:
    """Copy the pages and what they link to, with a configuration, into an empty folder.

    A page's diagrams are replaced by what `draw` returns for their words.
    """
    for name in (*FRONT, *BESIDE):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copyfile)(source, folder / name)
    front = folder / "README.md"
    front.write_text(f"{front.read_text(encoding='utf-8')}\n{contents()}", encoding="utf-8")
    for page in folder.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        if "```mermaid" in text:
            page.write_text(DIAGRAM.sub(lambda found: draw(found[1]), text), encoding="utf-8")
    (folder / "conf.py").write_text(_CONF, encoding="utf-8")


def graph(diagram: str) -> str:
    """Return the arrows of a Mermaid state diagram in Graphviz's language."""
    arrows = re.findall(r"^ *(\S+) --> (\S+) : (.*)$", diagram, re.M)
    return "\n".join(
        [
            "digraph { bgcolor=transparent; node [fontname=sans fontsize=13 shape=box style=rounded]",
            'edge [fontname=sans fontsize=10]; "[*]" [shape=point width=0.15]',
            *(f'"{a}" -> "{b}" [label=" {label} "]' for a, b, label in arrows),
            "}",
        ]
    )


def drawn(diagram: str) -> str:
    """Return a state diagram as a picture in the page, in the page's own colours.

    Mermaid draws in the reader's browser, with a library from elsewhere; here Graphviz draws at once.
    Raises BuildError where it is missing.
    """
    if not shutil.which("dot"):
        raise BuildError("`dot` is missing, which draws the diagrams: install graphviz")
    done = subprocess.run(["dot", "-Tsvg"], input=graph(diagram), capture_output=True, text=True, check=True)
    svg = done.stdout[done.stdout.index("<svg") :].replace('"black"', '"currentColor"')
    svg = svg.replace("<text ", '<text fill="currentColor" ')
    svg = svg.replace("<svg ", '<svg style="max-width:100%;height:auto" ', 1)
    return f"```{{raw}} html\n{svg}```"


def build(out: Path) -> None:
    """Build the site anew. Raises BuildError with every link and page that does not fit."""
    with tempfile.TemporaryDirectory() as folder:
        stage(Path(folder), drawn)
        environment = os.environ | {"SOURCE_DATE_EPOCH": str(commit_s())}
        options = ("-q", "-W", "--keep-going", "-b", "html")  # html: its links also work from a folder
        argv = [tools_python("docs"), "-m", "sphinx", *options, folder, f"{folder}/_out"]
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BuildError(done.stderr.replace(f"{folder}/", "").strip())
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(f"{folder}/_out", out, ignore=shutil.ignore_patterns(".doctrees", ".buildinfo"))
        shutil.copyfile(out / "README.html", out / "index.html")


def main() -> int:
    try:
        build(OUT)
    except BuildError as error:
        print(f"docs: {error}", file=sys.stderr)
        return 1
    print(f"docs: {OUT.relative_to(ROOT)}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
