"""The list of what `make soak` holds cannot rot."""

from __future__ import annotations

import pytest

from tests.real.soak_list import PAGE, held, noted, page

pytestmark = [pytest.mark.real, pytest.mark.gate]


def test_the_page_is_what_there_is() -> None:
    """`make docs` writes it; how long each took stays as it was noted."""
    files = held()
    assert "tests/real/test_soak_pause.py" in files
    assert PAGE.read_text() == page(files, noted())


def test_noted_times_are_read_again() -> None:
    text = page({"tests/real/test_soak_page.py"}, {"tests/real/test_soak_page.py": "1.5"})
    assert "| `tests/real/test_soak_page.py` | 1.5 | " in text
