"""What cgroup.conf lets slurmd do on a machine without systemd, such as some guests."""

from __future__ import annotations

import re

from backfill.core.model.cluster import SlurmVersion

# From then on slurmd ends where it does not reach systemd, also with IgnoreSystemdOnFailure
# (plugins/cgroup/v2/cgroup_v2.c, _init_new_scope_dbus).
_ENDS_SINCE = (24, 5)
_TRUE = frozenset({"yes", "up", "true", "1"})  # common/parse_value.c, s_p_handle_boolean


def heeds_failure(version: SlurmVersion) -> bool:
    """Return True if IgnoreSystemdOnFailure helps: slurmd asks systemd, and does without if it fails."""
    return version.major < _ENDS_SINCE


def works_without_systemd(text: str, version: SlurmVersion) -> bool:
    """Return True if slurmd needs no systemd under this cgroup.conf; of a value, the last one counts."""
    plain = "\n".join(re.sub(r"(?<!\\)#.*", "", line) for line in text.splitlines()).replace("\\\n", "")
    pairs = re.findall(r"(\w+)[ \t]*=[ \t]*\"?([^\s\"]*)", plain)
    values = {key.casefold(): value.casefold() for key, value in pairs}
    if values.get("cgroupplugin") == "cgroup/v1" or values.get("ignoresystemd") in _TRUE:
        return True
    return heeds_failure(version) and values.get("ignoresystemdonfailure") in _TRUE
