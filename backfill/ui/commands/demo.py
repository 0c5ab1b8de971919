"""`backfill demo`: the main job before one's eyes, on a real lab or in simulated time."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from backfill.lab.roots import INSTALLED, RELEASES
from backfill.sim.scenarios.player import Outcome
from backfill.ui.outfile import write_text
from backfill.ui.parser import BAD_DATA, NO, NO_PERMISSION, OK, UNAVAILABLE, USAGE, say
from backfill.ui.report.builder import timeline_of
from backfill.ui.report.junit import junit_lines
from backfill.ui.report.page import PageHead, judgements, write_report
from backfill.ui.report.papers import Play, against_the_paper, beside_one_another, paper_rows
from backfill.ui.report.pilots import days, documents, rows
from backfill.ui.terminal import aligned, emphasis, sign

if TYPE_CHECKING:
    from backfill.sim.scenarios.player import Outcome
    from backfill.sim.scenarios.pool_day import PoolDay
    from backfill.sim.scenarios.scenario import Scenario
    from backfill.ui.report.papers import Play

_SCENARIO = Path("scenarios/first_day.yaml")
_REPORT = Path("backfill-demo.html")
# Simulated seconds per second where somebody watches: a minute's story in ten seconds.
_PACE = 6.0


def add_demo_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `backfill demo`."""
    add_play_arguments(parser)
    parser.add_argument(
        "--report", type=Path, default=_REPORT, metavar="PATH", help=f"the report ({_REPORT})"
    )


def add_play_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that `backfill demo` and `backfill replay` share for scenarios."""
    parser.add_argument(
        "scenario",
        nargs="?",
        type=Path,
        metavar="SCENARIO",
        help=f"a file, or the name of one that comes with backfill ({_SCENARIO})",
        default=None,
    )
    parser.add_argument(
        "--simulated", action="store_true", help="in simulated time: no root, nothing to set up"
    )
    parser.add_argument(
        "--policy", type=Path, metavar="FILE", help="in simulated time, with the rules of this policy file"
    )
    parser.add_argument(
        "--against", type=Path, metavar="FILE", help="and beside it with those of a second one"
    )
    parser.add_argument("--junit", type=Path, metavar="OUT", help="write the expectations as a JUnit report")
    parser.add_argument("--json", action="store_true", help="print nothing but the outcome")
    parser.add_argument(
        "--slurm",
        default=INSTALLED,
        choices=RELEASES,
        help=f"release of the lab's controller, hosts and guests ({INSTALLED})",
    )
    parser.add_argument("--keep", action="store_true", help="leave the lab running afterwards")


def run_demo(args: argparse.Namespace) -> int:
    """Play the scenario, tell what was proven, leave a report; 1 if an expectation failed."""
    from backfill.lab.spec import LabError, LabPermissionError
    from backfill.ports.errors import DriverError
    from backfill.ui.commands import demo_lab

    try:
        variants = _variants(args)
        first = next(iter(variants.values()))
        live = _live(args, first)
        if not args.json:
            title = emphasis(first.name.capitalize())
            print(title + (f": {first.about}" if first.about else ""))
        plays = [_played(args, name, one, live=live) for name, one in variants.items()]
        status = conclude(args, plays, live=live)
    except _CannotError as error:
        for line in str(error).splitlines():
            say(line)
        return error.code
    except (LabError, DriverError) as error:
        say(str(error))
        return NO_PERMISSION if isinstance(error, LabPermissionError) else NO
    if live and args.keep and not args.json:
        print("\n" + "\n".join(demo_lab.kept()))
    return status


def _misuse(args: argparse.Namespace) -> str | None:
    if args.against is not None and args.policy is None:
        return "--against needs --policy FILE, the policy that it is compared with"
    if args.policy is not None and getattr(args, "live", False):
        return "--live plays a scenario with its own policy; leave --policy or --live out"
    if args.slurm != INSTALLED and _on_paper(args):
        return "--slurm is for the lab; leave it out where time is simulated"
    return None


def _variants(args: argparse.Namespace) -> dict[str, Scenario]:
    """By name of the policy: the scenario as it is, or under each policy file that is given."""
    from backfill.config import load
    from backfill.config.problems import ConfigError
    from backfill.sim.replay.fitting import MisfitError
    from backfill.sim.scenarios.reader import load_scenario, under
    from backfill.sim.scenarios.shipped import located, looks_like_trace
    from backfill.ui.outfile import require_writable

    misuse = _misuse(args)
    if misuse:
        raise _CannotError(misuse, USAGE)
    path = located(args.scenario or _SCENARIO)
    if looks_like_trace(path):
        what = "this looks like a trace, and what is played is a scenario, such as first_day"
        raise _CannotError(f"{path}: {what}; a trace is replayed without --live", BAD_DATA)
    files = [file for file in (args.policy, args.against) if file is not None]
    try:
        scenario = load_scenario(path)
        policies = {str(file): load(file).policies for file in files}
        found = {name: under(scenario, one, name) for name, one in policies.items()}
    except (ConfigError, MisfitError) as error:
        raise _CannotError(str(error), BAD_DATA) from error
    require_writable([args.report, args.junit], [path, *files])
    return found or {scenario.name: scenario}


class _CannotError(Exception):
    def __init__(self, sentence: str, code: int) -> None:
        super().__init__(sentence)
        self.code = code


def _live(args: argparse.Namespace, scenario: Scenario) -> bool:
    """Return True to play on a lab. The demo does without one, unless it was asked for one."""
    from backfill.lab.image import USUAL, Recipe
    from backfill.ui.commands import demo_lab

    if _on_paper(args):
        return False
    recipe = Recipe(args.slurm)
    wanted = getattr(args, "live", False) or recipe != USUAL
    why = demo_lab.missing(recipe)
    if why and wanted:
        raise _CannotError(f"{why}: the scenario cannot be played live here", UNAVAILABLE)
    if why:
        say(f"{why}, so this is the simulated demo, with the same decisions in simulated time")
        return False
    unfit = demo_lab.unfit(scenario)
    if unfit:
        raise _CannotError(f"this scenario cannot be played on a lab: {unfit}", BAD_DATA)
    return True


def _on_paper(args: argparse.Namespace) -> bool:
    """Return True if simulated time was asked for; `replay` takes it where `--live` is not given."""
    unasked = getattr(args, "live", None) is False
    return bool(args.simulated or args.policy is not None or unasked)


def _played(args: argparse.Namespace, name: str, scenario: Scenario, *, live: bool) -> Play:
    """Play it, and show it as it goes on unless only the outcome is wanted."""
    from backfill.sim.scenarios.measures import measured
    from backfill.sim.scenarios.player import play
    from backfill.sim.scenarios.pool_day import day_of
    from backfill.sim.scenarios.stage import SimulatedStage
    from backfill.ui.report.live import LiveWatcher, watcher
    from backfill.ui.report.papers import Play

    if live:
        return Play(name, _on_lab(scenario, args))
    if args.json or args.against is not None:
        stage = SimulatedStage(scenario)
        outcome = play(scenario, stage)
    else:
        with watcher() as shown:
            pace = _paced() if isinstance(shown, LiveWatcher) else None
            stage = SimulatedStage(scenario, pace)
            outcome = play(scenario, stage, shown.show)
    figures = measured(scenario, outcome, stage.jobs(), stage.ends_s())
    day = None if scenario.payloads is None else day_of(name, stage, outcome)
    return Play(name, outcome, figures, day)


def _on_lab(scenario: Scenario, args: argparse.Namespace) -> Outcome:
    from backfill.sim.scenarios.player import play
    from backfill.ui.commands.demo_lab import LabStage, demo_lab
    from backfill.ui.report.live import watcher

    shown = not args.json
    with demo_lab(scenario, _tell, keep=args.keep, release=args.slurm) as lab:
        stage = LabStage(lab, scenario.count_every_s)
        try:
            with watcher() if shown else nullcontext() as watching:
                outcome = play(scenario, stage, *([watching.show] if watching else []))
        finally:
            stage.close()
        if not outcome.ok:
            say(f"the logs of the daemon and of the lab's machines are kept in {lab.dir}")
        return outcome


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _paced() -> Callable[[float], None]:
    """Wait until the wall clock has caught up with simulated time, so that one can watch."""
    began_s = time.monotonic()

    def catch_up(played_s: float) -> None:
        time.sleep(max(0.0, began_s + played_s / _PACE - time.monotonic()))

    return catch_up


def conclude(args: argparse.Namespace, plays: Sequence[Play], *, live: bool) -> int:
    """Print and write what came of it; NO if an expectation failed. Raises OutputError.

    `plays`: one, or one for each of two policies. The page is about the first.
    """
    if not any(play.outcome.verdicts for play in plays):
        say("nothing was expected, so that nothing can fail; add expect: [{check: ended-once}]")
    if args.junit is not None:
        write_text(args.junit, junit_lines([(play.name, play.outcome) for play in plays]))
    found = days(plays)
    beside = tuple(rows(found)) if found else ()
    if args.report is not None:
        _page(args.report, plays[0].outcome, beside, live=live)
    if args.json:
        print(json.dumps(_document(plays, found, live=live)))
    else:
        for line in _lines(plays):
            print(line)
        if args.report is not None:
            print(f"\nThe report with the picture: {args.report}")
        _beside_the_paper(plays)
        _beside_rivals(beside)
    return OK if all(play.outcome.ok for play in plays) else NO


def _lines(plays: Sequence[Play]) -> Iterator[str]:
    """Yield a tick or a cross for each expectation; of two policies also their measures."""
    for play in plays:
        yield ""
        if len(plays) > 1:
            yield emphasis(play.name)
        for verdict in play.outcome.verdicts:
            mark = emphasis(sign("✓", "+"), "32") if verdict.ok else emphasis(sign("✗", "x"), "31;1")
            yield f" {mark} {verdict.text}"
            yield from (f"     {detail}" for detail in verdict.details)
    if len(plays) > 1:
        yield ""
        yield from aligned(beside_one_another(plays))


def _beside_the_paper(plays: Sequence[Play]) -> None:
    """Play a scenario after a paper: its figures beside ours, always in simulated time."""
    lines = list(against_the_paper(plays[0].outcome.scenario)) if len(plays) == 1 else []
    if lines:
        print("\nBeside the paper, in simulated time (docs/papers.md says what differs):\n")
        print("\n".join(lines))


def _beside_rivals(beside: Sequence[tuple[str, ...]]) -> None:
    """Play a scenario with payloads: ours beside killing, pausing blindly and never evicting."""
    if beside:
        print("\nThe same story in other ways, drawn from the same seed (docs/replay.md):\n")
        print("\n".join(aligned(beside)))


def _page(path: Path, outcome: Outcome, beside: tuple[tuple[str, ...], ...], *, live: bool) -> None:
    scenario = outcome.scenario
    head = PageHead(
        scenario.name.capitalize(),
        scenario.about,
        "On real parts: slurmctld, slurmd, libvirt, QEMU" if live else "In simulated time",
        not live,
        judgements((v.ok, v.text, v.details) for v in outcome.verdicts),
        beside,
    )
    write_report(path, timeline_of(outcome.records), head)


def _document(plays: Sequence[Play], found: Sequence[PoolDay], *, live: bool) -> dict[str, object]:
    scenario = plays[0].outcome.scenario
    names = ("measure", "variant", "paper", "ours")
    figures = paper_rows(scenario) if len(plays) == 1 else []
    return {
        "scenario": scenario.name,
        "simulated": not live,
        "ok": all(play.outcome.ok for play in plays),
        "plays": {play.name: _play(play) for play in plays},
        "paper": [dict(zip(names, row, strict=True)) for row in figures],
        "payloads": documents(found),
    }


def _play(play: Play) -> dict[str, object]:
    outcome = play.outcome
    return {
        "ok": outcome.ok,
        "took_s": round(outcome.end_s - outcome.start_s, 3),
        "measures": dict(play.measures),
        "expectations": [
            {"title": v.title, "ok": v.ok, "text": v.text, "details": list(v.details)}
            for v in outcome.verdicts
        ],
    }
