"""job_submit.lua: pokes the daemon when a job arrives, around the site's own file, unchanged."""

from __future__ import annotations

import os
from pathlib import Path

from backfill.drivers.slurm.conf.files import remove_file, replace_file, sync_directory

NAME, SITES = "job_submit.lua", "job_submit.site.lua"
_MARK = "-- Made by `backfill slurm hooks install`. Do not edit; the site's own file is "
# Jobs of one second share one poke: starting a program costs slurmctld a millisecond or two.
_TEXT = """{mark}{sites}.
local poke = "SLURM_SCRIPT_CONTEXT=arrival {program} >/dev/null 2>&1 </dev/null &"
local last = 0
slurm_job_submit, slurm_job_modify = nil, nil
local loaded = {load}
local site_submit, site_modify = slurm_job_submit, slurm_job_modify

function slurm_job_submit(...)
  local result = slurm.SUCCESS
  if site_submit then result = site_submit(...) end
  if os.time() ~= last then
    last = os.time()
    pcall(os.execute, poke)
  end
  return result
end

function slurm_job_modify(...)
  if site_modify then return site_modify(...) end
  return slurm.SUCCESS
end

return loaded
"""


class SubmitScript:
    """The script in Slurm's configuration directory. A crash leaves one whole script there."""

    def __init__(self, directory: Path, seen_as: Path) -> None:
        """`seen_as`: the directory's path as slurmctld sees it."""
        self._ours = directory / NAME
        self._sites = directory / SITES
        self._seen_as = seen_as / SITES

    @property
    def state(self) -> str:
        """`absent`, `site` (not merged), or `merged`."""
        if not self._ours.exists():
            return "absent"
        return "merged" if self._is_ours() else "site"

    def _is_ours(self) -> bool:
        return self._ours.read_bytes().startswith(_MARK.encode())

    def install(self, program: Path) -> None:
        """Put ours in place; the site's file gets another name and stays as it is."""
        if self.state == "site":
            fresh = self._sites.with_name(f".{SITES}.backfill-new")
            fresh.unlink(missing_ok=True)
            os.link(self._ours, fresh)
            os.replace(fresh, self._sites)
            sync_directory(self._sites.parent)
        load = f'dofile("{self._seen_as}")' if self._sites.exists() else "slurm.SUCCESS"
        text = _TEXT.format(mark=_MARK, sites=SITES, program=program, load=load)
        if not self._ours.exists() or self._ours.read_text(errors="replace") != text:
            # A hard link must not be written through: the replacement is a new file.
            replace_file(self._ours, text, like=self._sites if self._sites.exists() else None)
            if not self._sites.exists():
                self._ours.chmod(0o644)

    def remove(self) -> None:
        """The site's file is back, the very same; without one, there is none."""
        if self.state == "site":
            return  # somebody has put his own file over ours: it is his
        if self._sites.exists():
            os.replace(self._sites, self._ours)
            sync_directory(self._ours.parent)
        elif self.state == "merged":
            remove_file(self._ours)
