"""`backfill version`."""

from __future__ import annotations

import argparse
from importlib.metadata import PackageNotFoundError, version

from backfill.ui.codes import OK


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(args: argparse.Namespace) -> int:
    """Print the version of the installed package."""
    print(f"backfill {release()}")
    return OK


def release() -> str:
    """The version, or a word for a source tree that was never installed."""
    try:
        return version("backfill")
    except PackageNotFoundError:
        return "from source"
