"""The part of job_submit.lua about a job's own machines: checked, held, and told to the daemon by a word."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from backfill.drivers.slurm.job_pins import PIN_PREFIX

# What a job asks for stands in its control environment (its options, by the SPANK plugin), in --extra
# or in --comment; a constraint or a partition asks for plain ones. The reader of the word in
# core/model/job_machines.py has the same keys and bounds.
_TEXT = r"""
local sizes = { K = 1 / 1024, M = 1, G = 1024, T = 1024 * 1024 }

local function count(most)
  return function(text)
    local found = #text <= 9 and string.match(text, "^%d+$") and tonumber(text)
    return found and found >= 1 and found <= most and found
  end
end

local function size(usual)
  return function(text)
    local digits, unit = string.match(text, "^(%d+)([KMGTkmgt]?)[Bb]?$")
    if not digits or #digits > 9 then return false end
    local mb = math.floor(tonumber(digits) * sizes[unit == "" and usual or string.upper(unit)])
    return mb >= 1 and mb <= 2 ^ 30 and mb
  end
end

local function name(text)
  return #text <= 64 and string.match(text, "^%w[%w_.-]*$")
end

local function place(text)
  return text == "together" or text == "spread"
end

local function regions(text)
  local many = 0
  for part in string.gmatch(text .. "+", "([^+]*)%+") do
    local mb = size("M")(part)
    while mb and mb > 1 do mb = mb / 2 end
    many = many + 1
    if mb ~= 1 then return false end
  end
  return many <= 16 and text
end

local keys = {
  { "per_node", count(64), "a number from 1 to 64", "--vm-per-node" },
  { "cpus", count(4096), "a number from 1 to 4096", "--vcpu-per-vm" },
  { "mem", size("M"), "a size such as 2048 (MB) or 2G", "--mem-per-vm" },
  { "disk", size("G"), "a size such as 20 (GB) or 500M", "--disk-size" },
  { "image", name, "a name of letters, digits and . _ -", "--vm-image" },
  { "network", name, "a name of letters, digits and . _ -", "--vm-network" },
  { "sriov", count(64), "a number from 1 to 64", "--sriov" },
  { "ivshmem", regions, "sizes that are powers of two such as 256+256 (MB), 16 at most", "--ivshm-sz" },
  { "place", place, "together or spread", "--vm-place" },
}
local word_says = "its request for machines of its own "
local needs = {
  ["ivshmem"] = "--num-ivshmem and --ivshm-sz need --ivshmem",
  ["ivshm-sz"] = "--ivshm-sz takes one size, or as many as --num-ivshmem says",
}

-- The pairs behind the word in a text; an empty text for the word alone.
local function word_in(text)
  for part in string.gmatch(text or "", "[^%s;|]+") do
    local found = part == "backfill-vm" and "" or string.match(part, "^backfill%-vm:(.*)$")
    if found then return found end
  end
end

local function by_options(job_desc)
  for _, entry in pairs(job_desc.spank_job_env or {}) do
    local found = string.match(entry, "^BACKFILL_VM=(.*)$") or string.match(entry, "^SPANK_BACKFILL_VM=(.*)$")
    if found then return found end
  end
end

local function names_feature(features)
  if own.feature == "" then return false end
  for word in string.gmatch(features or "", "[%w_.-]+") do
    if word == own.feature then return true end
  end
end

-- The partitions that the job names, or the one that it gets; an empty text if that is not known.
local function partition_of(job_desc, part_list)
  local named = job_desc.partition or ""
  for partition, part in pairs(named == "" and part_list or {}) do
    if part.flag_default == 1 then named = partition end
  end
  return named
end

-- The daemon does not look at others, and the job would be held for ever.
local function not_served(job_desc, partition)
  if partition == "" or own.partitions[partition] or own.low[partition] or own.inside[partition] then
    return
  end
  if own.low_qos[job_desc.qos or ""] and not own.high[partition] then return end
  return "partition " .. partition .. " has no machines that are a job's own: name one of " .. own.served
end

-- Its machines are made on the nodes that it gets: it is neither held nor routed.
local function has_nodes(job_desc, part_list)
  return own.inside[partition_of(job_desc, part_list)]
end

local function asked_for(job_desc, part_list)
  local extra = own.extra and job_desc.extra or nil
  local found = by_options(job_desc) or word_in(extra) or word_in(job_desc.comment)
  if found then return found end
  local by_partition = own.partitions[partition_of(job_desc, part_list)]
  if has_nodes(job_desc, part_list) then return end
  if names_feature(job_desc.features) or by_partition then return "" end
end

-- The values by key, or nothing and a sentence.
local function read(pairs_text)
  local values = {}
  for pair in string.gmatch(pairs_text, "[^,]+") do
    local key, value = string.match(pair, "^([^=]*)=?(.*)$")
    if key == "needs" then return nil, needs[value] or "its options do not go together" end
    local known = key == "held"
    for _, one in ipairs(keys) do
      if one[1] == key then
        known = true
        if values[key] then return nil, word_says .. "says " .. key .. " more than once" end
        if not one[2](value) then
          return nil, one[4] .. ", " .. key .. "=" .. string.sub(value, 1, 40) .. ": use " .. one[3]
        end
        values[key] = value
      end
    end
    if not known then
      return nil, word_says .. "has an unknown key " .. string.sub(key, 1, 40)
        .. ": use per_node, cpus, mem, disk, image, network, sriov, ivshmem, place"
    end
  end
  return values
end

-- Why the job's owner may not have what is somebody's.
local function not_theirs(kind, asked, found, job_desc)
  local user = job_desc.user_name or name_of(job_desc.user_id)
  local account = job_desc.account or job_desc.default_account
  if found.whose ~= "" and not found.users[user] and not found.accounts[account or ""] then
    return "user " .. user .. " of account " .. (account or "(none)") .. " may not have " .. kind .. " "
      .. asked .. ": it is for " .. found.whose
  end
end

-- What its machines can never have, or its owner may not ask for.
local function not_given(values, job_desc)
  if own.clouds and (values.sriov or values.ivshmem) then
    return "its machines are made in a cloud, where they have no devices: leave out --sriov and --ivshmem"
  end
  if values.disk and size("G")(values.disk) > own.most_disk_gb * 1024 then
    return "--disk-size=" .. values.disk .. " is more than the " .. own.most_disk_gb
      .. " GB that a machine's disk may have"
  end
  local network, image = own.networks[values.network], own.images[values.image]
  if values.network and not network then
    return "--vm-network=" .. values.network .. ": there is no network of that name" .. own.known_networks
  end
  return (network and not_theirs("network", values.network, network, job_desc))
    or (image and not_theirs("image", values.image, image, job_desc)) -- the daemon knows if there is another
end

-- What of the job itself does not go with machines of its own.
local function contradiction(values, job_desc)
  local per_task, on_node = job_desc.cpus_per_task, job_desc.min_mem_per_node
  if values.cpus and per_task and per_task < 65534 and tonumber(values.cpus) < per_task then
    return "--vcpu-per-vm=" .. values.cpus .. " is less than one task takes (--cpus-per-task="
      .. math.floor(per_task) .. ")"
  end
  if values.mem and on_node and on_node < 2 ^ 60 and size("M")(values.mem) < on_node then
    return "--mem-per-vm=" .. values.mem .. " is less than the " .. math.floor(on_node)
      .. " MB that the job takes on each node (--mem)"
  end
  if (job_desc.req_nodes or "") ~= "" then return "its machines are made for it: leave out --nodelist" end
  if (job_desc.reservation or "") ~= "" then
    return "its machines are reserved for it: leave out --reservation"
  end
  if string.find(job_desc.features or "", "[%[%]*]") then
    return "its machines are all alike: --constraint takes names with & or | between them, no [ ] and no *"
  end
end

local function routed(features)
  if own.feature == "" then return features end
  if not features or features == "" then return own.feature end
  if names_feature(features) and not string.find(features, "|", 1, true) then return features end
  return "(" .. features .. ")&" .. own.feature
end

-- Slurm takes a list, and the job begins in whichever of them has room.
local function for_another(reservations)
  for name in string.gmatch(reservations or "", "[^,]+") do
    if string.sub(name, 1, #own.pin) == own.pin then
      return "reservation " .. name .. " is for the machines of one job"
    end
  end
end

-- Makes a job that asks for machines ready for the daemon, or returns why it cannot be taken.
local function make_ready(job_desc, part_list, asked)
  local values, why = read(asked)
  why = why or not_served(job_desc, partition_of(job_desc, part_list))
  local inside = has_nodes(job_desc, part_list)
  why = why or not_given(values, job_desc) or (not inside and contradiction(values, job_desc))
  if why then return why end
  local told = {}
  for _, one in ipairs(keys) do
    if values[one[1]] then told[#told + 1] = one[1] .. "=" .. values[one[1]] end
  end
  if not inside and job_desc.priority ~= 0 then -- otherwise its owner holds it himself
    job_desc.priority = 0
    told[#told + 1] = "held=1"
  end
  local word = "backfill-vm" .. (#told > 0 and ":" .. table.concat(told, ",") or "")
  local said = job_desc.admin_comment
  local features = not inside and routed(job_desc.features)
  if features then job_desc.features = features end -- Slurm takes no nil here
  job_desc.admin_comment = said and said ~= "" and said .. " " .. word or word
end

-- Why the job cannot be taken. Whatever goes wrong here, one that asks for nothing is let through.
local function own_machines(job_desc, part_list)
  local fine, stranger = pcall(for_another, job_desc.reservation)
  if fine and stranger then return stranger end
  local found, asked = pcall(asked_for, job_desc, part_list)
  if not found then slurm.log_error("backfill: %s", tostring(asked)) end
  if not found or not asked then return end
  local made, why = pcall(make_ready, job_desc, part_list, asked)
  return why
end

-- What would undo the hold or the routing of a job, by its owner; why not.
local function undoes(job_desc, job_rec, uid)
  if own.trusted[uid] then return end -- root, or the daemon as SlurmUser, who pins jobs himself
  local stranger = for_another(job_desc.reservation)
  if stranger then return stranger end
  local word = word_in(job_rec.admin_comment)
  if uid ~= job_rec.user_id or not word or own.inside[job_rec.partition] then return end
  local priority, begins = job_desc.priority, job_desc.begin_time
  if not string.find(word, "held=1", 1, true) then priority = nil end -- his own hold, or an admin's
  local changed = (job_desc.features and "--constraint") or (job_desc.req_nodes and "--nodelist")
    or (job_desc.reservation and "--reservation") or (job_desc.partition and "--partition")
    or (priority and priority ~= own.no_val and priority ~= 0 and "the hold")
    or (begins and begins ~= 0 and begins ~= own.no_val and "--begin")
  if changed then
    return changed .. " of a job with machines of its own stays as it is: cancel it and submit it anew"
  end
end
"""


def quoted(text: str) -> str:
    """Return a Lua string: what could end it, or hide in it, is written as its number."""
    plain = (c if c.isascii() and c.isprintable() and c not in '"\\' else None for c in text)
    parts = zip(plain, text, strict=True)
    return '"' + "".join(p or "".join(f"\\{b:03d}" for b in c.encode()) for p, c in parts) + '"'


_NONE = "\nlocal function own_machines() end\nlocal function undoes() end\n"


@dataclass(frozen=True, slots=True)
class NamedGate:
    """Who may ask for something by its name; `whose` ends what others are told, empty: everybody may."""

    name: str
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    whose: str = ""

    def lua(self) -> str:
        """One entry of the table."""
        users, accounts = lua_set(self.users), lua_set(self.accounts)
        fields = f"users = {users}, accounts = {accounts}, whose = {quoted(self.whose)}"
        return f"[{quoted(self.name)}] = {{ {fields} }}"


def lua_set(names: Iterable[str]) -> str:
    """Return a Lua table that is true for these names."""
    return "{ " + ", ".join(f"[{quoted(name)}] = true" for name in names) + " }"


@dataclass(frozen=True, slots=True)
class MachineGate:
    """How jobs with machines of their own are routed: by a feature that their machines have.

    `partitions`: each job there has them; `low`: jobs there may, and with a QOS of `low_qos` wherever it
    is not `high`; `inside`: jobs there may have them on the nodes that they get. `extra`: this release
    of Slurm has --extra. An empty feature: nothing is added to constraints. `clouds`: all of their hosts
    are clouds, which lend no devices. `slurm_uid`: SlurmUser, who may change jobs as root may.
    `most_disk_gb`: how large a disk a job may ask for. `images`: those that are somebody's; whether there
    are others the daemon says, which reads its catalogue anew.
    """

    feature: str
    partitions: tuple[str, ...] = ()
    low: tuple[str, ...] = ()
    low_qos: tuple[str, ...] = ()
    high: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()
    extra: bool = False
    networks: tuple[NamedGate, ...] = ()
    images: tuple[NamedGate, ...] = ()
    clouds: bool = False
    slurm_uid: int | None = None
    most_disk_gb: int = 1 << 20  # the largest size that is read at all


def machines_part(gate: MachineGate | None) -> str:
    """Return the text of the functions `own_machines` and `undoes`, which do nothing without a gate."""
    if gate is None:
        return _NONE
    return f"\nlocal own = {{ {', '.join(_settings(gate))} }}{_TEXT}"


def _settings(gate: MachineGate) -> Iterable[str]:
    yield f"feature = {quoted(gate.feature)}"
    for name in ("partitions", "low", "low_qos", "high", "inside"):
        yield f"{name} = {lua_set(getattr(gate, name))}"
    yield f"served = {quoted(', '.join((*gate.low, *gate.partitions, *gate.inside)))}"
    yield f"extra = {str(gate.extra).lower()}"
    for kind in ("networks", "images"):
        yield f"{kind} = {{ {', '.join(one.lua() for one in getattr(gate, kind))} }}"
    known = ", ".join(network.name for network in gate.networks)
    yield f"known_networks = {quoted(f', use {known}' if known else '')}"
    yield f"clouds = {str(gate.clouds).lower()}"
    yield f"most_disk_gb = {gate.most_disk_gb}"
    uids = (0,) if gate.slurm_uid is None else (0, gate.slurm_uid)
    yield f"trusted = {{ {', '.join(f'[{uid}] = true' for uid in uids)} }}"
    yield f"pin = {quoted(PIN_PREFIX)}"
    yield "no_val = slurm.NO_VAL or 4294967294"
