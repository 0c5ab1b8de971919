"""The scenarios and traces that come with the project, beside the sources or inside the package."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

_PACKAGE = Path(__file__).parents[2]
# In a wheel they lie in the package, in a working copy beside it.
_PLACES = (_PACKAGE / "scenarios", _PACKAGE.parent / "scenarios")
_ENDINGS = ("", ".yaml", ".swf")
_TRACES = (".swf", ".gz", ".zip")
_BEGINNING = 8192  # bytes that show what a file is
_KEYS = frozenset({"about", "hosts", "policy", "jobs", "limit_s", "costs"})


def folder() -> Path:
    """Return where they are; below the present directory when this is neither of both."""
    return next((place for place in _PLACES if place.is_dir()), Path("scenarios"))


def there(path: Path) -> bool:
    """Return False for what is not there. Whoever opens the rest says why, if it cannot be looked at."""
    try:
        return path.exists()
    except OSError:
        return True


def located(path: Path) -> Path:
    """Return the file that `path` names: itself if it is there, else one of ours, else `path`.

    `first_day`, `papers/slurm-v.yaml` and `scenarios/traces/poisson.swf` all name one of ours.
    """
    if there(path) or path.is_absolute() or ".." in path.parts:
        return path
    parts = path.parts[1:] if path.parts[:1] == ("scenarios",) else path.parts
    inside = folder().joinpath(*parts)
    for ending in _ENDINGS:
        ours = inside.with_name(inside.name + ending)
        if parts and ours.is_file():
            return ours
    return path


def looks_like_scenario(path: Path) -> bool:
    """Return True for a file that begins as a scenario, whatever it is called."""
    keys = {line.partition(":")[0] for line in _beginning(path)}
    return "name" in keys and not keys.isdisjoint(_KEYS)


def looks_like_trace(path: Path) -> bool:
    """Return True for a file that is called as traces are, or begins as one."""
    first = next((line for line in _beginning(path) if line.strip()), "")
    return path.suffix in _TRACES or first.startswith(";") or first.count("|") > 1


def _beginning(path: Path) -> list[str]:
    """Return the first lines; none of what is no plain file, which can perhaps be read only once."""
    try:
        if not path.is_file():
            return []
        with path.open("rb") as file:
            return file.read(_BEGINNING).decode("utf-8", "replace").splitlines()
    except OSError:  # whoever opens it says why
        return []


def names() -> list[str]:
    """Return all names, as they can be typed."""
    base = folder()
    files = (file for file in sorted(base.rglob("*")) if file.suffix in _ENDINGS[1:])
    return [str(file.relative_to(base)) for file in files]


def remedy(path: Path) -> str:
    """Say what to do where `path` names nothing: one of ours may have been meant."""
    ours = {Path(name).stem: str(Path(name).with_suffix("")) for name in names()}
    near = get_close_matches(path.stem, ours, 1, 0.75)
    return f"did you mean {ours[near[0]]}? otherwise check the path" if near else "check the path"
