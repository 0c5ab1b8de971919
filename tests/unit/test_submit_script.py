"""The file job_submit.lua as slurmctld finds it: it has to notice that it was replaced."""

from __future__ import annotations

import os
from pathlib import Path

from backfill.drivers.slurm.hooks.submit_lua import Gate, SubmitRules, SubmitScript

GATE = Gate("gpu", ("ada",), (), "may not")


def test_a_script_that_follows_another_within_a_second_is_younger(tmp_path: Path) -> None:
    """Slurmctld compares whole seconds, and would keep the old rules until somebody restarts it."""
    script, path = SubmitScript(tmp_path, tmp_path), tmp_path / "job_submit.lua"
    program = tmp_path / "poke"
    seen = []
    for gates in ((), (GATE,), (), (GATE,)):
        script.install(SubmitRules(program, gates))
        seen.append(int(path.stat().st_mtime))
    assert seen == sorted(set(seen))
    script.install(SubmitRules(program, (GATE,)))
    assert int(path.stat().st_mtime) == seen[-1]


def test_one_in_the_place_of_the_sites_is_younger_as_well(tmp_path: Path) -> None:
    """Also where the clock of the file server is ahead; and so is the site's own file once it is back."""
    path = tmp_path / "job_submit.lua"
    path.write_text("-- ours\n")
    ahead_s = int(path.stat().st_mtime) + 100
    os.utime(path, (ahead_s, ahead_s))
    script = SubmitScript(tmp_path, tmp_path)
    script.install(SubmitRules(tmp_path / "poke"))
    assert int(path.stat().st_mtime) == ahead_s + 1
    assert int((tmp_path / "job_submit.site.lua").stat().st_mtime) == ahead_s
    script.remove()
    assert (path.read_text(), int(path.stat().st_mtime)) == ("-- ours\n", ahead_s + 2)


def test_a_change_of_the_sites_own_script_is_due_and_is_read(tmp_path: Path) -> None:
    """Slurmctld looks at the age of ours alone."""
    path, sites = tmp_path / "job_submit.lua", tmp_path / "job_submit.site.lua"
    path.write_text("-- theirs\n")
    script, rules = SubmitScript(tmp_path, tmp_path), SubmitRules(tmp_path / "poke")
    script.install(rules)
    before_s = int(path.stat().st_mtime)
    assert script.follows(rules)
    sites.write_text("-- theirs, with another rule\n")
    assert not script.follows(rules)
    script.install(rules)
    assert script.follows(rules)
    assert int(path.stat().st_mtime) > before_s
    script.remove()
    assert path.read_text() == "-- theirs, with another rule\n"
