"""Policy files for tests: the smallest one, one of parts, and where they are kept."""

from __future__ import annotations

from pathlib import Path

from backfill.config import Config, ConfigError, Problem, load

ROOT = Path(__file__).parents[2]

# Keys by name, each with its lines; a test replaces or drops some and keeps the rest.
PARTS = {
    "cluster": "cluster: c1",
    "priorities": "priorities: {low: [htc], high: [batch]}",
    "hosts": "hosts:\n  - {name: bm1, provider: simulated}\n  - {name: bm2, provider: simulated}",
    "instances": (
        "instances:\n  names: vn[1-4]\n  addresses: 10.0.1.1/16\n  flavour: {cpus: 2, memory_mb: 512}"
    ),
}
LIBVIRT = """libvirt:
  directory: /srv/backfill
  bridge: br0
  surroundings: {controller: 10.0.0.1, conf_server: "10.0.0.1:6817", munge_key: /etc/munge.key}
  images:
    default: {kernel: /k, initrd: /i, disk: /d, cmdline: quiet}
"""
LIBVIRT_HOST = 'hosts: [{name: bm1, provider: libvirt, uri: "qemu+tcp://10.0.0.11/system"}]'


def text(*more: str, without: str = "", **parts: str) -> str:
    """A good file with some parts replaced, one left out, and more put behind."""
    chosen = {**PARTS, **parts}
    return "\n".join([v for k, v in chosen.items() if k != without] + list(more)) + "\n"


def loaded(where: Path, content: str) -> Config:
    """The configuration of a file with this content."""
    path = where / "policy.yaml"
    path.write_text(content)
    return load(path)


def problems(where: Path, content: str | bytes) -> list[Problem]:
    """All that is wrong with a file with this content."""
    path = where / "policy.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    try:
        load(path)
    except ConfigError as error:
        return list(error.problems)
    return []


def sentences(where: Path, content: str | bytes) -> list[str]:
    """The same as sentences, with the file's name for its path."""
    return [str(p).replace(str(where) + "/", "") for p in problems(where, content)]
