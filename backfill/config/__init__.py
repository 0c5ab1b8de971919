"""The policy file: YAML -> checked frozen values, or sentences that say what to change where."""

from backfill.config.catalogue import confined
from backfill.config.images import ImageEntry
from backfill.config.live import conflicts, hints, hints_of_file
from backfill.config.load import check_text, load
from backfill.config.model import (
    CallLimits,
    Config,
    DaemonSettings,
    DomainType,
    HardwareEntry,
    HostEntry,
    LibvirtEntry,
    Provider,
    SlurmSettingsFile,
    SurroundingsEntry,
)
from backfill.config.problems import ConfigError, Problem
from backfill.config.schema import json_schema

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
    "check_text",
    "confined",
    "conflicts",
    "hints",
    "hints_of_file",
    "json_schema",
    "load",
]
