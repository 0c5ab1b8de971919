"""job_submit.lua: refuses and pokes when a job arrives, around the site's own file, unchanged."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from backfill.drivers.slurm.access import PREFIX
from backfill.drivers.slurm.conf.files import remove_file, replace_file, sync_directory
from backfill.drivers.slurm.hooks.machines_lua import MachineGate, lua_set, machines_part, quoted

NAME, SITES = "job_submit.lua", "job_submit.site.lua"
_MARK = "-- Made by `backfill slurm hooks install`. Do not edit; the site's own file is "
# Jobs of one second share one poke: starting a program costs slurmctld a millisecond or two.
# Whoever may not have what he asks for is turned away before the site's own script sees the job.
_TEXT = """{mark}{sites}.
local poke = "SLURM_SCRIPT_CONTEXT=arrival {program} >/dev/null 2>&1 </dev/null &"
local poking, last = {poking}, 0
slurm_job_submit, slurm_job_modify = nil, nil
local loaded = {load}
local site_submit, site_modify = slurm_job_submit, slurm_job_modify

-- Who may have which environment, by the feature that jobs ask for.
local gates = {{
{gates}}}
-- Who may be on nodes with which feature.
local rooms = {{
{rooms}}}

local function name_of(uid)
  local pipe = io.popen("id -un " .. tostring(uid))
  local name = pipe and pipe:read("*l")
  if pipe then pipe:close() end
  return name or tostring(uid)
end

local function refusal(features, user, uid, account)
  for feature in string.gmatch(features or "", "[%w_.-]+") do
    local gate = gates[feature]
    if gate then
      user = user or name_of(uid)
      if not gate.users[user] and not gate.accounts[account or ""] then
        return "user " .. user .. " of account " .. (account or "(none)") .. " " .. gate.whose
      end
    end
  end
end

-- Whether a list such as vn[1-3,7],vn9 names the node.
local function names(list, node)
  for prefix, ranges in string.gmatch(list, "([^,%[%]]+)(%b[])") do
    local rest = string.sub(node, 1, #prefix) == prefix and string.sub(node, #prefix + 1) or ""
    local number = string.match(rest, "^%d+$") and tonumber(rest)
    for low, high in string.gmatch(ranges, "(%d+)%-?(%d*)") do
      local last = tonumber(high) or tonumber(low)
      if number and #rest >= #low and tonumber(low) <= number and number <= last then return true end
    end
  end
  for name in string.gmatch(string.gsub(list, "[^,]*%b[]", ""), "[^,]+") do
    if name == node then return true end
  end
end

-- Nodes that are kept for some, by reservations that the daemon makes. Of those only the names are
-- looked at: slurmctld's own fields of a reservation are not safe to read in every release.
local function kept(nodes, user, uid, account)
  for name in pairs(nodes and next(rooms) and slurm.reservations or {{}}) do
    for feature, room in pairs(rooms) do
      local start = "{prefix}" .. feature .. "-"
      local node = string.sub(name, 1, #start) == start and string.sub(name, #start + 1)
      if node and names(nodes, node) then
        user = user or name_of(uid)
        if not room.users[user] and not room.accounts[account or ""] then
          return "user " .. user .. " of account " .. (account or "(none)") .. " may not have node "
            .. node .. ": it is for " .. room.whose
        end
      end
    end
  end
end

local function refused(features, nodes, user, uid, account)
  for _, rule in ipairs({{ refusal, kept }}) do
    local checked, why = pcall(rule, rule == kept and nodes or features, user, uid, account)
    if checked and why then
      slurm.log_user("%s", why)
      return true
    end
  end
end

{machines}
function slurm_job_submit(job_desc, part_list, uid, ...)
  if refused(job_desc.features, job_desc.req_nodes, job_desc.user_name, job_desc.user_id,
             job_desc.account or job_desc.default_account) then
    return slurm.ESLURM_ACCESS_DENIED or slurm.ERROR
  end
  local result = slurm.SUCCESS
  if site_submit then result = site_submit(job_desc, part_list, uid, ...) end
  if result ~= slurm.SUCCESS then return result end
  local why = own_machines(job_desc, part_list)
  if why then
    slurm.log_user("%s", tostring(why))
    return slurm.ERROR
  end
  if poking and os.time() ~= last then
    last = os.time()
    pcall(os.execute, poke)
  end
  return result
end

function slurm_job_modify(job_desc, job_rec, part_list, uid, ...)
  if refused(job_desc.features, job_desc.req_nodes, job_rec.user_name, job_rec.user_id,
             job_desc.account or job_rec.account) then
    return slurm.ESLURM_ACCESS_DENIED or slurm.ERROR
  end
  local checked, why = pcall(undoes, job_desc, job_rec, uid)
  if checked and why then
    slurm.log_user("%s", why)
    return slurm.ESLURM_ACCESS_DENIED or slurm.ERROR
  end
  if site_modify then return site_modify(job_desc, job_rec, part_list, uid, ...) end
  return slurm.SUCCESS
end

return loaded
"""


@dataclass(frozen=True, slots=True)
class Gate:
    """A rule for who may ask for a feature; `whose` ends the sentence about somebody who may not."""

    feature: str
    users: tuple[str, ...]
    accounts: tuple[str, ...]
    whose: str

    def lua(self) -> str:
        """One entry of the table."""
        users, accounts = lua_set(self.users), lua_set(self.accounts)
        return (
            f"  [{quoted(self.feature)}] = {{ users = {users}, accounts = {accounts},\n"
            f"    whose = {quoted(self.whose)} }},\n"
        )


@dataclass(frozen=True, slots=True)
class SubmitRules:
    """What the script does: whom it turns away, and which program it calls when a job arrives."""

    program: Path
    gates: Sequence[Gate] = ()
    rooms: Sequence[Gate] = ()
    poking: bool = True
    machines: MachineGate | None = None


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

    def install(self, rules: SubmitRules) -> None:
        """Put ours in place; the site's file gets another name and stays as it is."""
        if self.state == "site":
            fresh = self._sites.with_name(f".{SITES}.backfill-new")
            fresh.unlink(missing_ok=True)
            os.link(self._ours, fresh)
            os.replace(fresh, self._sites)
            sync_directory(self._sites.parent)
        if not self.follows(rules):
            # A hard link must not be written through: the replacement is a new file.
            before_s = int(self._ours.stat().st_mtime) if self._ours.exists() else 0
            replace_file(self._ours, self._text(rules), like=self._sites if self._sites.exists() else None)
            if not self._sites.exists():
                self._ours.chmod(0o644)
            _make_younger(self._ours, before_s)

    def follows(self, rules: SubmitRules) -> bool:
        """Return True if ours is in place, with these rules and as this version writes it."""
        return self._ours.exists() and self._ours.read_text(errors="replace") == self._text(rules)

    def _text(self, rules: SubmitRules) -> str:
        load = "slurm.SUCCESS"
        if self._sites.exists():
            # slurmctld notices only that ours is another: so it is one for each content of the site's.
            seen = hashlib.sha256(self._sites.read_bytes()).hexdigest()
            load = f'dofile("{self._seen_as}")  -- {seen}'
        return _TEXT.format(
            mark=_MARK,
            sites=SITES,
            program=rules.program,
            load=load,
            poking=str(rules.poking).lower(),
            prefix=PREFIX,
            rooms="".join(room.lua() for room in rules.rooms),
            gates="".join(gate.lua() for gate in rules.gates),
            machines=machines_part(rules.machines),
        )

    def remove(self) -> str:
        """Put the site's file back, the very same but for its time; without one, leave none.

        A sentence where somebody has put his own file over ours: it is his, and stays.
        """
        if self.state == "site":
            if not self._sites.exists():
                return ""
            return (
                f"{self._ours} is not ours any more and stays; what the site had before is kept "
                f"as {self._sites.name}"
            )
        if self._sites.exists():
            before_s = int(self._ours.stat().st_mtime) if self._ours.exists() else 0
            _make_younger(self._sites, before_s)
            os.replace(self._sites, self._ours)
            sync_directory(self._ours.parent)
        elif self.state == "merged":
            remove_file(self._ours)
        return ""


def _make_younger(script: Path, before_s: int) -> None:
    """Have slurmctld read it: it does so where the file is younger in whole seconds (slurm_lua.c)."""
    now = script.stat()
    if int(now.st_mtime) <= before_s:
        os.utime(script, (now.st_atime, before_s + 1))
