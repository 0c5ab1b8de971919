"""Durations and sizes as people write them."""

from __future__ import annotations

import pytest

from backfill.config.values import AmountError, duration_s, number, size_mb


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("0", 0),
        ("1.5", 1.5),
        ("500ms", 0.5),
        ("90s", 90),
        ("5m", 300),
        ("5 min", 300),
        ("4h", 14400),
        ("2d", 172800),
        ("1w", 604800),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("2 Hours", 7200),
        ("5:30", 330),
        ("90:00", 5400),
        ("1:02:30", 3750),
        ("1-2", 93600),
        ("1-02:30", 95400),
        ("1-02:30:00", 95400),
    ],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    """A bare number is seconds; units add up; Slurm's own forms mean what they mean in Slurm."""
    assert duration_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("5 parsecs", "unknown unit parsecs"),
        ("5M5x", "unknown unit x"),
        ("-5s", "negative"),
        ("- 5", "negative"),
        ("", "empty"),
        ("soon", "not a duration"),
        ("5m soon", "not a duration"),
        ("5m30", "not a duration"),
        (".inf", "not a duration"),
        (".nan", "not a duration"),
        ("1e3", "unknown unit e"),
        ("1:60:00", "59 minutes"),
        ("1-24", "23 hours"),
        ("00:00:60", "59 minutes or seconds"),
        ("4000d", "ten years"),
        ("9" * 400, "not a duration"),
        ("UNLIMITED", "not a duration"),
    ],
)
def test_a_wrong_duration_says_what_is_wrong_with_it(text: str, words: str) -> None:
    """Nothing is guessed: unknown units, signs and words are refused."""
    with pytest.raises(AmountError, match=words):
        duration_s(text)


@pytest.mark.parametrize(
    ("text", "mb"),
    [
        ("256", 256),
        ("256MB", 256),
        ("256 mb", 256),
        ("256MiB", 256),
        ("2G", 2048),
        ("2GiB", 2048),
        ("1.5G", 1536),
        ("1T", 1048576),
        ("2048K", 2),
        ("2048KB", 2),
    ],
)
def test_a_size_is_read_in_mb_as_slurm_does(text: str, mb: int) -> None:
    """G, GB and GiB are all 1024 MB."""
    assert size_mb(text) == mb


def test_a_bare_number_under_a_gb_key_counts_gb() -> None:
    """`disk_gb: 4` and `disk_gb: 4096MB` are the same."""
    assert size_mb("4", unit_mb=1024) == size_mb("4096MB", unit_mb=1024) == 4096


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("256KBs", "unknown unit KBs"),
        ("5 minutes", "unknown unit minutes"),
        ("1K", "not a whole number of MB"),
        ("0.3", "not a whole number of MB"),
        ("-1", "negative"),
        ("much", "not a size"),
        ("", "not a size"),
        ("2G 5M", "not a size"),
        ("999999999T", "larger than any machine"),
    ],
)
def test_a_wrong_size_says_what_is_wrong_with_it(text: str, words: str) -> None:
    """Half a megabyte and unknown units are refused, not rounded."""
    with pytest.raises(AmountError, match=words):
        size_mb(text)


@pytest.mark.parametrize("text", ["010", "0x10", "1_000", "1e3", "yes", "1s", "", ".5", "+5"])
def test_a_count_is_a_plain_decimal_number(text: str) -> None:
    """YAML's octal, hexadecimal and sexagesimal numbers would surprise; they are refused."""
    with pytest.raises(AmountError):
        number(text)
