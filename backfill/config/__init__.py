"""The policy file: YAML -> checked frozen values, or sentences that say what to change where."""

from backfill.config.load import check, load
from backfill.config.model import (
    CallLimits,
    Config,
    DaemonSettings,
    DomainType,
    HardwareEntry,
    HostEntry,
    ImageEntry,
    LibvirtEntry,
    Provider,
    SlurmSettingsFile,
    SurroundingsEntry,
)
from backfill.config.problems import ConfigError, Problem

__all__ = [
    "CallLimits",
    "Config",
    "ConfigError",
    "DaemonSettings",
    "DomainType",
    "HardwareEntry",
    "HostEntry",
    "ImageEntry",
    "LibvirtEntry",
    "Problem",
    "Provider",
    "SlurmSettingsFile",
    "SurroundingsEntry",
    "check",
    "load",
]
