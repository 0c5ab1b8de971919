"""`backfill demo`: the main job before one's eyes, on a real lab or in simulated time."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from backfill.ui.codes import BAD_DATA, NO, OK, UNAVAILABLE
from backfill.ui.parser import say
from backfill.ui.terminal import emphasis

if TYPE_CHECKING:
    from backfill.sim.scenario import Scenario
    from backfill.sim.scenario_player import Outcome

_SCENARIO = Path("scenarios/first_day.yaml")
_REPORT = Path("backfill-demo.html")
# Simulated seconds per second where somebody watches: a minute's story in ten seconds.
_PACE = 6.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `backfill demo` and of `backfill replay` for scenarios."""
    parser.add_argument(
        "scenario", nargs="?", type=Path, metavar="SCENARIO", help=f"({_SCENARIO})", default=None
    )
    parser.add_argument(
        "--simulated", action="store_true", help="in simulated time: no root, nothing to set up"
    )
    parser.add_argument(
        "--report", type=Path, default=_REPORT, metavar="PATH", help=f"the report ({_REPORT})"
    )
    parser.add_argument("--keep", action="store_true", help="leave the lab running afterwards")


def run(args: argparse.Namespace) -> int:
    """Play the scenario, tell what was proven, leave a report; 1 if an expectation failed."""
    from backfill.config.problems import ConfigError
    from backfill.lab.spec import LabError
    from backfill.ports import DriverError
    from backfill.sim.scenario_reader import load_scenario
    from backfill.sim.shipped import located
    from backfill.ui import demo_lab

    try:
        scenario = load_scenario(located(args.scenario or _SCENARIO))
    except ConfigError as error:
        sys.stderr.write(f"{error}\n")
        return BAD_DATA
    if not args.report.parent.is_dir():
        say(f"the report cannot be written to {args.report}: there is no such directory")
        return NO
    try:
        live = _live(args, scenario)
    except _CannotError as error:
        say(str(error))
        return error.code
    print(emphasis(scenario.name.capitalize()) + (f": {scenario.about}" if scenario.about else ""))
    try:
        outcome = _on_lab(scenario, keep=args.keep) if live else _simulated(scenario)
    except (LabError, DriverError) as error:
        say(str(error))
        return NO
    status = _conclude(outcome, args.report, live=live)
    _beside_the_paper(scenario)
    if live and args.keep:
        print("\n" + "\n".join(demo_lab.kept()))
    return status


class _CannotError(Exception):
    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


def _live(args: argparse.Namespace, scenario: Scenario) -> bool:
    """Whether to play on a lab. The demo does without one; `replay --live` was asked for it."""
    from backfill.ui import demo_lab

    wanted = getattr(args, "live", None)
    if args.simulated or wanted is False:
        return False
    why = demo_lab.missing()
    if why and wanted:
        raise _CannotError(f"{why}: the scenario cannot be played live here", UNAVAILABLE)
    if why:
        say(f"{why}, so this is the simulated demo, with the same decisions in simulated time")
        return False
    unfit = demo_lab.unfit(scenario)
    if unfit:
        raise _CannotError(f"this scenario cannot be played on a lab: {unfit}", BAD_DATA)
    return True


def _simulated(scenario: Scenario) -> Outcome:
    from backfill.sim.scenario_player import play
    from backfill.sim.stage import SimulatedStage
    from backfill.ui.timeline import LiveWatcher, watcher

    with watcher() as shown:
        pace = _paced() if isinstance(shown, LiveWatcher) else None
        return play(scenario, SimulatedStage(scenario, pace), shown.show)


def _on_lab(scenario: Scenario, *, keep: bool) -> Outcome:
    from backfill.sim.scenario_player import play
    from backfill.ui.demo_lab import demo_lab
    from backfill.ui.demo_live import LabStage
    from backfill.ui.timeline import watcher

    with demo_lab(scenario, _tell, keep=keep) as lab:
        stage = LabStage(lab, scenario.count_every_s)
        try:
            with watcher() as shown:
                outcome = play(scenario, stage, shown.show)
        finally:
            stage.close()
        if not outcome.ok:
            say(f"the logs of the daemon and of the lab's machines are kept in {lab.dir}")
        return outcome


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _conclude(outcome: Outcome, path: Path, *, live: bool) -> int:
    """Print a tick or a cross for each expectation, and write the report."""
    from backfill.ui.report import Head, judgements, write_report
    from backfill.ui.timeline_builder import timeline_of

    print()
    for verdict in outcome.verdicts:
        mark = emphasis("✓", "32") if verdict.ok else emphasis("✗", "31;1")
        print(f" {mark} {verdict.text}")
        for detail in verdict.details:
            print(f"     {detail}")
    scenario = outcome.scenario
    head = Head(
        scenario.name.capitalize(),
        scenario.about,
        "On real parts: slurmctld, slurmd, libvirt, QEMU" if live else "In simulated time",
        not live,
        judgements((v.ok, v.text, v.details) for v in outcome.verdicts),
    )
    try:
        write_report(path, timeline_of(outcome.records), head)
    except OSError as error:
        say(f"the report cannot be written to {path}: {error.strerror}")
        return NO
    print(f"\nThe report with the picture: {path}")
    return OK if outcome.ok else NO


def _beside_the_paper(scenario: Scenario) -> None:
    """A scenario after a paper: its figures beside ours, always in simulated time."""
    from backfill.sim.paper import against_the_paper

    lines = list(against_the_paper(scenario))
    if lines:
        print("\nBeside the paper, in simulated time (docs/papers.md says what differs):\n")
        print("\n".join(lines))


def _paced() -> Callable[[float], None]:
    """Waits until the wall clock has caught up with simulated time, so that one can watch."""
    began_s = time.monotonic()

    def catch_up(played_s: float) -> None:
        time.sleep(max(0.0, began_s + played_s / _PACE - time.monotonic()))

    return catch_up
