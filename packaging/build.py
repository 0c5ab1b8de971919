"""Builds what people install into dist/: wheel and source archive, zipapp, packages, and the list of parts.

`make packages` builds all, `make packages WHAT="wheel deb12"` some. Packages are built in a clean
Debian without a network, from a source archive and from wheels that were fetched before and whose
sums stand in requirements.site.lock. Everything that carries a time carries the last commit's.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

from tools import ROOT, BuildError, commit_s, run, tools_python, uv

from backfill.lab.cleanroot import clean_root
from backfill.lab.spec import LabError

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
LOCK = ROOT / "requirements.site.lock"
WHEEL = f"backfill-{VERSION}-py3-none-any.whl"
SOURCES = f"backfill-{VERSION}.tar.gz"
# What Debian's packages are built with, beside the essential ones.
_DEBIAN = ("dpkg-dev", "debhelper", "python3")
DEB12 = (*_DEBIAN, "python3-venv", "python3-dev", "gcc", "libc6-dev", "libvirt-dev", "pkg-config")
DEB13 = (
    *_DEBIAN,
    "dh-python",
    "pybuild-plugin-pyproject",
    "python3-all",
    "python3-hatchling",
    "python3-yaml",
    "python3-rich",
)
RPM = ("rpm", "python3")
# The pure dependencies that the .rpm brings; the bindings are the system's.
_RPM_PARTS = ("pyyaml", "rich", "markdown-it-py", "mdurl", "pygments")


# --- for everybody --------------------------------------------------------------------------------


def build_wheel(out: Path) -> list[Path]:
    """Build the wheel with all that a site needs, and the source archive."""
    run(uv(), "build", "--quiet", "--python", sys.executable, "--out-dir", out, ROOT)
    (out / ".gitignore").unlink(missing_ok=True)
    return [out / WHEEL, out / SOURCES]


def build_zipapp(out: Path) -> list[Path]:
    """One file that runs where Python 3.11 or newer is: to try, without bindings."""
    app = out / "backfill.pyz"
    wheel = needed(out, WHEEL)
    with tempfile.TemporaryDirectory() as folder:
        site = Path(folder) / "site"
        install = (uv(), "pip", "install", "--quiet", "--python", sys.executable, "--target", site)
        run(*install, "--no-deps", "--require-hashes", "-r", parts_lock(Path(folder), _RPM_PARTS))
        run(*install, "--no-deps", wheel)
        # YAML's compiled half would tie the file to one version of Python; the package does without.
        for compiled in site.rglob("*.so"):
            compiled.unlink()
        shutil.rmtree(site / "share", ignore_errors=True)
        forget_origin(site)
        run(
            tools_python("package"),
            "-m",
            "shiv",
            "--site-packages",
            site,
            "--entry-point",
            "backfill.__main__:main",
            "--python",
            "/usr/bin/env python3",
            "--compressed",
            "--reproducible",
            "--output-file",
            app,
        )
    return [app]


def forget_origin(site: Path) -> None:
    """Remove the notes of where and when each part was installed: another folder and time in each build."""
    for note in (*site.glob("*.dist-info/direct_url.json"), *site.glob("*.dist-info/uv_cache.json")):
        record = note.with_name("RECORD")
        lines = record.read_text(encoding="utf-8").splitlines(keepends=True)
        record.write_text("".join(line for line in lines if note.name not in line), encoding="utf-8")
        note.unlink()


def build_sbom(out: Path) -> list[Path]:
    """Write the list of parts with their versions and sums, in CycloneDX's form."""
    path = out / f"backfill-{VERSION}.cdx.json"
    run(
        tools_python("package"),
        "-m",
        "cyclonedx_py",
        "requirements",
        "--pyproject",
        ROOT / "pyproject.toml",
        "--output-reproducible",
        "--output-file",
        path,
        LOCK,
    )
    return [path]


def parts_lock(folder: Path, names: Sequence[str]) -> Path:
    """Write a lock file with these parts of the site's alone."""
    path, keep = folder / "parts.lock", False
    lines = []
    for line in LOCK.read_text(encoding="utf-8").splitlines(keepends=True):
        if not line.startswith((" ", "\t")):
            keep = line.split("==")[0].strip().lower() in names
        if keep:
            lines.append(line)
    path.write_text("".join(lines), encoding="utf-8")
    return path


def needed(out: Path, name: str) -> Path:
    """Return what is built from; build it where it is not there yet."""
    if not (out / name).is_file():
        build_wheel(out)
    return out / name


# --- Debian's -------------------------------------------------------------------------------------


def build_deb12(out: Path) -> list[Path]:
    """Build the package for Debian 12, with an environment of its own inside."""
    with tempfile.TemporaryDirectory() as folder:
        wheelhouse = Path(folder) / "wheelhouse"
        fetch = (
            tools_python("package"),
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            wheelhouse,
        )
        run(*fetch, "--require-hashes", "-r", LOCK)
        shutil.copy2(needed(out, WHEEL), wheelhouse)
        return build_deb(out, "bookworm", DEB12, "deb12", {wheelhouse: "wheelhouse"})


def build_deb13(out: Path) -> list[Path]:
    """Build the package for Debian 13, with Debian's own Python packages."""
    return build_deb(out, "trixie", DEB13, "deb13", {})


def build_deb(out: Path, suite: str, packages: Sequence[str], mark: str, more: dict[Path, str]) -> list[Path]:
    """Build the package in a clean root of `suite` and put it into `out`."""
    with tempfile.TemporaryDirectory() as folder:
        tree = unpacked(needed(out, SOURCES), Path(folder))
        for source, name in more.items():
            shutil.copytree(source, tree / name)
        for part in ("common", suite):
            shutil.copytree(ROOT / "packaging/debian" / part, tree / "debian", dirs_exist_ok=True)
        (tree / "debian/source").mkdir()
        (tree / "debian/source/format").write_text("3.0 (native)\n")
        fill(tree / "debian/changelog", f"{VERSION}+{mark}")
        # Byte code of other users of that environment; what it is installed with, dpkg knows.
        clean = "find /usr/lib/backfill -name __pycache__ -type d -prune -exec rm -rf {} + || true"
        prerm = tree / "debian/backfill.prerm"
        prerm.write_text(prerm.read_text().replace("#CLEAN#", clean if suite == "bookworm" else ""))
        with clean_root(suite, packages, {Path(folder): "/build"}) as root:
            root.run(
                f"cd /build/{tree.name} && export SOURCE_DATE_EPOCH={commit_s()} && "
                "dpkg-buildpackage --build=binary --no-sign -d"
            )
        return [Path(shutil.copy2(deb, out)) for deb in sorted(Path(folder).glob("backfill_*.deb"))]


def unpacked(archive: Path, folder: Path) -> Path:
    """Unpack a source archive into `folder`; return its own folder there."""
    run("tar", "-x", "--no-same-owner", "-f", archive, "-C", folder)
    return folder / archive.name.removesuffix(".tar.gz")


def fill(path: Path, version: str) -> None:
    """Put the version and the last commit's time into a template."""
    day = format_datetime(datetime.fromtimestamp(commit_s(), UTC))
    text = path.read_text(encoding="utf-8").replace("@VERSION@", version).replace("@DATE@", day)
    path.write_text(text, encoding="utf-8")


# --- Red Hat's ------------------------------------------------------------------------------------


def build_rpm(out: Path) -> list[Path]:
    """Build the package for Enterprise Linux 9 and 10: built here, never run there."""
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder) / "rpm"
        for name in ("SOURCES", "SPECS", "RPMS"):
            (top / name).mkdir(parents=True)
        tree = Path(folder) / f"backfill-{VERSION}"
        rpm_tree(out, tree)
        spec = Path(shutil.copy2(ROOT / "packaging/rpm/backfill.spec", top / "SPECS"))
        fill(spec, VERSION)
        pack(tree, top / "SOURCES" / SOURCES)
        with clean_root("bookworm", RPM, {top: "/rpm"}) as root:
            defines = (
                "_topdir /rpm",
                "use_source_date_epoch_as_buildtime 1",
                "_buildhost backfill",
                "clamp_mtime_to_source_date_epoch 1",
                "_build_id_links none",
            )
            named = " ".join(f"--define '{one}'" for one in defines)
            root.run(
                f"export SOURCE_DATE_EPOCH={commit_s()} && rpmbuild -bb --nodeps {named} "
                "/rpm/SPECS/backfill.spec"
            )
        return [Path(shutil.copy2(made, out)) for made in sorted(top.glob("RPMS/*/*.rpm"))]


def rpm_tree(out: Path, tree: Path) -> None:
    """Lay out what the .rpm is made of: modules in lib/, the wheel's data in data/, and our scripts."""
    (tree / "lib").mkdir(parents=True)
    install = (uv(), "pip", "install", "--quiet", "--python", sys.executable, "--target", tree / "lib")
    run(*install, "--no-deps", "--require-hashes", "-r", parts_lock(tree, _RPM_PARTS))
    (tree / "parts.lock").unlink()
    for compiled in (tree / "lib").rglob("*.so"):
        compiled.unlink()
    shutil.rmtree(tree / "lib/bin", ignore_errors=True)
    with zipfile.ZipFile(needed(out, WHEEL)) as wheel:
        for name in wheel.namelist():
            data = f"backfill-{VERSION}.data/data/"
            place = tree / "data" / name.removeprefix(data) if name.startswith(data) else tree / "lib" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(wheel.read(name))
    shutil.copytree(ROOT / "packaging", tree / "packaging", ignore=shutil.ignore_patterns("__pycache__"))


def pack(tree: Path, archive: Path) -> None:
    """Pack a folder so that two folders alike make two archives alike."""
    run(
        "tar",
        "--sort=name",
        f"--mtime=@{commit_s()}",
        "--owner=0",
        "--group=0",
        "--numeric-owner",
        "--use-compress-program=gzip -n",
        "-cf",
        archive,
        tree.name,
        cwd=tree.parent,
    )


BUILDERS: dict[str, Callable[[Path], list[Path]]] = {
    "wheel": build_wheel,
    "zipapp": build_zipapp,
    "sbom": build_sbom,
    "deb12": build_deb12,
    "deb13": build_deb13,
    "rpm": build_rpm,
}


def main() -> int:
    """Build what is named, everything without a name."""
    parser = argparse.ArgumentParser(prog="make packages", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"of {', '.join(BUILDERS)}")
    args = parser.parse_args()
    unknown = set(args.what) - set(BUILDERS)
    if unknown:
        parser.error(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(BUILDERS)}")
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.what or BUILDERS:
        try:
            for path in BUILDERS[name](args.out):
                print(f"{name}: {path} ({path.stat().st_size / 1e6:.1f} MB)", flush=True)
        except (BuildError, LabError) as error:
            print(f"error: {name}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
