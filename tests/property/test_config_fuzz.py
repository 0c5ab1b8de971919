"""Whatever a policy file contains, reading it gives values or sentences, never a crash."""

from __future__ import annotations

import tempfile
from pathlib import Path

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from backfill.config import Config, ConfigError, load
from backfill.config.reader import MAX_PROBLEMS, walk
from backfill.config.shapes import root
from backfill.config.values import AmountError, duration_s, size_mb

SAMPLE = (Path(__file__).parents[2] / "config/policy.yaml").read_text(encoding="utf-8")
KEYS = sorted({key.name for _, key in walk(root(), "")})
PIECES = [
    "\t",
    "\n",
    "\n  ",
    ": ",
    "- ",
    "[",
    "]",
    "{",
    "}",
    "&a ",
    "*a",
    "<<: ",
    "!x ",
    "|\n",
    "'",
    '"',
    "#",
    "---\n",
    "? ",
    "%",
    "null",
    "0",
    "-1",
    "1e9",
    "9" * 30,
    "10.0.1.1/16",
    "vn[1-",
    "é",
    "\x85",
]


def outcome(content: bytes) -> Config | ConfigError:
    """What reading a file with this content gives; anything else that is raised fails the test."""
    with tempfile.TemporaryDirectory() as where:
        path = Path(where) / "p.yaml"
        path.write_bytes(content)
        try:
            return load(path)
        except ConfigError as error:
            return error


def sound(error: ConfigError, content: bytes) -> bool:
    """Whether every problem is one printable line about a line that the file has."""
    lines = content.count(b"\n") + content.count(b"\r") + content.count(b"\xe2\x80\xa8") + 2
    lines += content.count(b"\xc2\x85") + content.count(b"\xe2\x80\xa9")
    return 0 < len(error.problems) <= MAX_PROBLEMS and all(
        str(p).isprintable() and len(str(p)) < 1000 and 0 <= p.line <= lines and p.what
        for p in error.problems
    )


@given(st.binary(max_size=300))
@settings(max_examples=150, deadline=None)
def test_any_bytes(content: bytes) -> None:
    """Bytes that mean nothing are refused in words."""
    found = outcome(content)
    assert isinstance(found, ConfigError)
    assert sound(found, content)


@given(st.text(max_size=300))
@settings(max_examples=150, deadline=None)
def test_any_text(text: str) -> None:
    """So is text that means nothing."""
    content = text.encode("utf-8", "surrogatepass")
    found = outcome(content)
    assert isinstance(found, ConfigError)
    assert sound(found, content)


@given(
    st.lists(
        st.tuples(st.integers(0, len(SAMPLE)), st.integers(0, 12), st.sampled_from([*PIECES, *KEYS])),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=150, deadline=None)
def test_a_good_file_with_scratches(scratches: list[tuple[int, int, str]]) -> None:
    """A file that somebody has edited carelessly is either still good or refused in words."""
    text = SAMPLE
    for start, length, piece in scratches:
        text = text[:start] + piece + text[start + length :]
    content = text.encode()
    found = outcome(content)
    assert isinstance(found, Config) or sound(found, content)


leaf = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(KEYS),
    st.sampled_from(["5 parsecs", "256KBs", "vn[1-9]", "10.0.0.1/16", "pause", "libvirt", "/x"]),
)
names = st.sampled_from(KEYS) | st.text(max_size=8)
trees = st.dictionaries(
    names,
    st.recursive(
        leaf,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=6),
        max_leaves=20,
    ),
    max_size=12,
)


@given(trees)
@settings(max_examples=150, deadline=None)
def test_known_keys_with_wrong_values(tree: dict[str, object]) -> None:
    """Right keys in wrong places with values of any kind are refused in words."""
    content = yaml.safe_dump(tree, allow_unicode=True).encode()
    found = outcome(content)
    assert isinstance(found, ConfigError)
    assert sound(found, content)


@given(st.text(max_size=20) | st.from_regex(r"\d{1,4}[:.hms-]\d{0,3}[a-zA-Z:]{0,4}", fullmatch=True))
def test_amounts_are_read_or_refused(text: str) -> None:
    """Durations and sizes are never negative, never infinite, and never raise anything else."""
    for parse in (duration_s, size_mb):
        try:
            value = parse(text)
        except AmountError:
            continue
        assert 0 <= value < 2**41


@given(st.integers(0, 10**6))
def test_a_duration_is_the_same_in_every_writing(seconds: int) -> None:
    """Seconds, compound units and Slurm's form agree."""
    days, rest = divmod(seconds, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    texts = (
        str(seconds),
        f"{seconds}s",
        f"{days}d{hours}h{minutes}m{rest}s",
        f"{days}-{hours:02}:{minutes:02}:{rest:02}",
    )
    assert {duration_s(text) for text in texts} == {float(seconds)}
