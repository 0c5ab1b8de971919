"""Fleets from the command line: what they wait for is said, asked for, and left alone on Ctrl-C."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from backfill.core.policies.environments import Environment, Environments
from backfill.core.world import World
from backfill.engine.checkpoint_order import CommandError
from backfill.engine.fleet_order import fleet_order
from backfill.ui.cli import main
from tests.component.living_daemon import LivingDaemon, living, policies


def _ordered(daemon: LivingDaemon, size: int, capsys: pytest.CaptureFixture[str]) -> str:
    """Give an order and go on; returns its name."""
    where = ["--json", "--socket", str(daemon.socket)]
    assert main(["fleet", "create", "-n", str(size), "--no-wait", *where]) == 0
    return str(json.loads(capsys.readouterr().out)["id"])


def test_an_order_that_waits_says_for_what_and_stays_when_its_caller_leaves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with living(tmp_path) as daemon:
        where = ["--socket", str(daemon.socket)]
        first = _ordered(daemon, 2, capsys)
        daemon.until(lambda: daemon.daemon.world.fleets[first].state == "ready")

        def leave(_: float) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(time, "sleep", leave)
        assert main(["fleet", "create", "-n", "1", *where]) == 130
        monkeypatch.undo()
        said = capsys.readouterr().err
        second = next(name for name in daemon.daemon.world.fleets if name != first)
        assert f"{second} waits: only 0 of 1 names are free in instances.names" in said
        assert f"`backfill fleet delete {second}` ends it" in said

        assert main(["fleet", "list", *where]) == 0
        assert f"{second}: waiting, 0 of 1 ready (-); only 0 of 1 names" in capsys.readouterr().out
        assert main(["explain", second, *where]) == 0
        told = capsys.readouterr().out
        assert f"{second} is waiting: 0 of 1 ready" in told
        assert "why        only 0 of 1 names are free in instances.names" in told
        assert main(["explain", "fleet", first, *where]) == 0
        told = capsys.readouterr().out
        assert f"its members stay, idle or not, until `backfill fleet delete {first}`" in told
        assert "vn1 ready on bm1" in told
        assert "every member takes jobs" in told


def test_whoever_waits_for_an_order_waits_over_a_restart_of_the_daemon(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order goes on, too; a script that took it for failed would give another one."""
    with living(tmp_path) as daemon:
        daemon.until(lambda: len(daemon.daemon.world.hosts) == 2)
        silent = iter([daemon.stop, daemon.start])

        def look(_: float) -> None:
            if (step := next(silent, None)) is not None:
                step()
            else:
                daemon.until(lambda: [f.state for f in daemon.daemon.world.fleets.values()] == ["ready"])

        monkeypatch.setattr("backfill.ui.errands.time", SimpleNamespace(sleep=look, monotonic=time.monotonic))
        monkeypatch.setattr("backfill.ui.commands.fleet.time", SimpleNamespace(sleep=look))
        assert main(["fleet", "create", "-n", "1", "--socket", str(daemon.socket)]) == 0
        assert "1 of 1 ready" in capsys.readouterr().out


def test_an_order_before_any_host_was_read_is_no_order_that_can_never_fit() -> None:
    """Right after the daemon's start nobody knows how large the hosts are."""
    known = policies()
    limits = known.limits
    size = min(len(known.hosts) * limits.max_per_host, limits.max_instances, len(known.instances.names))
    assert fleet_order(World(), known, {"n": size}).size == size
    with pytest.raises(CommandError, match=f"{size + 1} instances can never be had"):
        fleet_order(World(), known, {"n": size + 1})


def test_an_image_that_is_not_in_the_catalogue_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    known = Environments((Environment("root6", "hep"),), images=("default", "hep"))
    with living(tmp_path, replace(policies(), environments=known)) as daemon:
        where = ["--no-wait", "--socket", str(daemon.socket)]
        assert main(["fleet", "create", "-n", "1", "--image", "hpe", *where]) == 1
        said = capsys.readouterr().err
        assert "there is no image 'hpe'; there are: default, hep" in said
        assert not daemon.daemon.world.fleets
        assert main(["fleet", "create", "-n", "1", "--image", "root6", *where]) == 0
        (fleet,) = daemon.daemon.world.fleets.values()
        assert fleet.image == "hep"
