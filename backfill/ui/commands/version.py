"""`backfill version`."""

from __future__ import annotations

import argparse
import json
from importlib.metadata import PackageNotFoundError, version

from backfill.ui.parser import OK


def add_version_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `backfill version`."""
    parser.add_argument("--json", action="store_true", help="print the answer as JSON")


def run_version(args: argparse.Namespace) -> int:
    """Print the version of the installed package."""
    as_json = getattr(args, "json", False)  # `backfill --version` comes here as well
    print(json.dumps({"version": release()}) if as_json else f"backfill {release()}")
    return OK


def release() -> str:
    """Return the version, or a word for a source tree that was never installed."""
    try:
        return version("backfill")
    except PackageNotFoundError:
        return "from source"
