"""Every mistake in a policy file is one sentence with its place, its key and the remedy."""

from __future__ import annotations

import errno
from dataclasses import fields
from pathlib import Path

import pytest

from backfill.config import ConfigError, load
from backfill.core.policy import PolicySet
from tests.unit.policy_files import PARTS, problems, sentences, text

# What a policy decides by comes first, then where things are.
SECTIONS = ", ".join(
    [*(f.name for f in fields(PolicySet)), "daemon", "slurm", "libvirt", "openstack", "salt", "condor"]
)

# The part of the file that is wrong, and all sentences that must come of it. Lines: cluster 1,
# priorities 2, hosts 3-5, instances 6-9; what is put behind begins in line 10.
SENTENCES = [
    (
        text("limits: {max_instance: 3}"),
        "10:10: limits.max_instance is not a known key; did you mean max_instances? known keys "
        "here: max_instances, max_per_host, boots_at_once, removals_at_once, destroys_per_min, "
        "destroys_per_hour, sure_after_s, missing_s, creates_per_hour, stale_after_s, "
        "keep_cpus, keep_memory_mb",
    ),
    (text("limits: {max_instances: 0}"), "10:25: limits.max_instances is 0; it must be more than 0"),
    (
        text("limits: {keep_cpus: -2}"),
        "10:21: limits.keep_cpus is '-2', which is negative; write a whole number",
    ),
    (text("limits: {boots_at_once: 1.5}"), "10:25: limits.boots_at_once is 1.5; write a whole number"),
    (
        text("limits: [1, 2]"),
        "10:9: limits is a list; write the keys max_instances, max_per_host, boots_at_once, "
        "removals_at_once, destroys_per_min, destroys_per_hour, sure_after_s, missing_s, "
        "creates_per_hour, stale_after_s, keep_cpus, keep_memory_mb",
    ),
    (
        text("limits: {keep_memory_mb: 256KBs}"),
        "10:26: limits.keep_memory_mb is '256KBs', which has the unknown unit KBs; write a whole "
        "number of MB, or with a unit: 256MB, 2G, 2GiB, 1T (1G = 1024M, as in Slurm)",
    ),
    (
        text("ladder: [{rung: pause, within_s: 5 parsecs}]"),
        "10:34: ladder[0].within_s is '5 parsecs', which has the unknown unit parsecs; write a "
        "number of seconds, or 500ms, 90s, 5m, 1h30m, 2d, or Slurm's 1-02:30:00",
    ),
    (
        text("scale: {warm: many}"),
        "10:15: scale.warm is 'many', which is not a plain number; write a whole number",
    ),
    (text("scale: {warm: '2'}"), "10:15: scale.warm is '2', which is text in quotes; write a whole number"),
    (text("daemon: {workers: 5000}"), "10:19: daemon.workers is 5000; it must be 1024 or less"),
    (text("proof: disk"), "10:8: proof is the text 'disk'; write cpu or memory"),
    (
        text("placement: {order: spraed}"),
        "10:20: placement.order is the text 'spraed'; write first-fit, spread, random, "
        "best-fit or idle (did you mean spread?)",
    ),
    (
        text("demand:"),
        "10:8: demand has no value; write the keys min_jobs, max_nodes, ahead_s, or leave it out",
    ),
    (
        text("memory_mb: 3"),
        "10:1: memory_mb is not a known key; did you mean instances.flavour.memory_mb? "
        f"known keys here: {SECTIONS}",
    ),
    (  # it should be indented below limits; `instances`, which looks alike, is there already
        text("max_instances: 3"),
        "10:1: max_instances is not a known key; did you mean limits.max_instances? "
        f"known keys here: {SECTIONS}",
    ),
    (
        text(cluster="cluster: 7"),
        "1:10: cluster is the number 7; write a name of letters, digits, '.', '_' and '-'; if this "
        'is meant, put it in quotes: "7"',
    ),
    (text(without="cluster"), "1:1: cluster is missing; add it: a name of letters, digits, '.', '_' and '-'"),
    (text("cluster: c2"), "10:1: the key 'cluster' was already given in line 1; keep one of them"),
    (
        text(priorities="priorities: {low: htc}"),
        "2:19: priorities.low is the text 'htc'; write [htc], each item a name of letters, digits, "
        "'.', '_' and '-'",
    ),
    (
        text(priorities="priorities: {low: [htc, batch], high: [batch]}"),
        "2:40: priorities.high[0] names the partition batch, which is in priorities.low too; keep "
        "it in one of them",
    ),
    (text(priorities="priorities: {low: [htc, htc]}"), "2:25: priorities.low[1] repeats 'htc'; name it once"),
    (
        text(priorities="priorities: {low: []}"),
        "2:14: priorities.low is empty; name a partition whose jobs may be evicted",
    ),
    (text(hosts="hosts: []\n\n"), "3:1: hosts is empty; name at least one host"),
    (
        text(hosts="hosts: [{name: a, provider: simulated}, {name: a, provider: simulated}]\n\n"),
        "3:42: hosts[1].name is a, as hosts[0].name already is; every host has its own",
    ),
    (
        text("slurm: {conf: etc/slurm.conf}"),
        "10:15: slurm.conf is 'etc/slurm.conf', which is not an absolute path; write an absolute path",
    ),
    (
        text("daemon: {listen: 10.0.0.1}"),
        "10:18: daemon.listen is '10.0.0.1', which is not an IPv4 address with a port; write an IPv4 "
        "address with a port, such as 10.0.0.1:6817",
    ),
    (
        text("daemon: {listen: '[fd00::1]:6817'}"),
        "10:18: daemon.listen is '[fd00::1]:6817', which is not an IPv4 address with a port; write "
        "an IPv4 address with a port, such as 10.0.0.1:6817",
    ),
    (
        text("cluster2: &a {x: 1}\n"),
        "10:1: cluster2 is not a known key; did you mean cluster, which is there already? "
        f"known keys here: {SECTIONS}",
    ),
    (
        text("scale:\n  <<: {warm: 1}"),
        "11:3: << is a merge key, which hides where a value comes from; write the keys out",
    ),
    (
        text("scale: {warm: !!int 1}"),
        "10:15: a value has the tag 'tag:yaml.org,2002:int'; write the plain value, in quotes if it is text",
    ),
    (
        text("scale: !magic {warm: 1}"),
        "10:8: a value has the tag '!magic'; write the plain value, in quotes if it is text",
    ),
    (
        text("scale: {idle_s: *later}"),
        "10:17: the alias '*later' names no anchor that stands before it; define it above, or put "
        "the text in quotes",
    ),
    (
        text("scale: &a {idle_s: &a 5}"),
        "10:8: the anchor '&a' is used a second time; give every anchor a name of its own",
    ),
    (text("scale:\n\twarm: 1"), "11:1: there is a tab here; YAML wants spaces"),
    (text("---\ncluster: other"), "10:1: a second YAML document begins; a policy file is one document"),
    (text("? [a, b]\n: 1"), "10:3: there is a list or a section where a key must stand"),
    ("", "1:1: the policy file is empty; give at least cluster, priorities, instances, hosts"),
    ("# nothing yet\n", "1:1: the policy file is empty; give at least cluster, priorities, instances, hosts"),
    (
        "\n- cluster\n",
        "2:1: the policy file has no keys; give at least cluster, priorities, instances, hosts",
    ),
]


@pytest.mark.parametrize(("content", "sentence"), SENTENCES)
def test_one_mistake_is_one_sentence(tmp_path: Path, content: str, sentence: str) -> None:
    """The whole sentence: file, line, column, key, what is wrong, what would be right."""
    assert sentences(tmp_path, content) == [f"policy.yaml:{sentence}"]


def test_all_mistakes_are_shown_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    """Nobody has to run the check again for the next mistake."""
    bad = {
        "cluster": "cluster: [x]",
        "priorities": "priorities: {low: [htc], hihg: [a]}",
        "hosts": PARTS["hosts"].replace("bm2, provider: simulated", "bm2, provider: cloud"),
    }
    found = problems(tmp_path, text("scale: {idle_s: soon}", **bad))
    assert [p.path for p in found] == ["cluster", "priorities.hihg", "hosts[1].provider", "scale.idle_s"]
    assert [p.line for p in found] == [1, 2, 5, 10]


def test_a_mistyped_key_is_not_also_reported_as_missing(tmp_path: Path) -> None:
    """`clustre` is one mistake, not two."""
    found = problems(tmp_path, text(cluster="clustre: c1"))
    assert [p.path for p in found] == ["clustre"]


def test_a_mistake_through_an_alias_is_shown_where_it_is_written(tmp_path: Path) -> None:
    """The place is the anchor's, because that is where the remedy goes; the key is the alias's."""
    more = "scale: {boot_within_s: &t 5}\nlimits: {max_instances: &z 1, keep_cpus: *t}"
    assert problems(tmp_path, text(more)) == []
    more = "placement: {order: &o best}\nproof: *o"
    found = problems(tmp_path, text(more))
    assert [(p.path, p.line) for p in found] == [("placement.order", 10), ("proof", 10)]


def test_an_alias_counts_as_what_it_stands_for(tmp_path: Path) -> None:
    """A few kilobytes may not become millions of values."""
    rungs = "ladder: &l [&r {rung: pause, for_s: 10}" + ", *r" * 200 + "]\n"
    found = sentences(tmp_path, f"{rungs}workloads: [&w {{name: x, ladder: *l}}" + ", *w" * 200 + "]\n")
    assert len(found) == 1
    assert found[0].startswith("policy.yaml:2:")
    assert "over 100000 values, each alias counted as what it stands for" in found[0]


def test_an_alias_cannot_contain_itself(tmp_path: Path) -> None:
    """A loop in the file is a mistake, not an endless one."""
    found = sentences(tmp_path, text("scale: &a {idle_s: *a}"))
    assert len(found) == 1
    assert "names no anchor that stands before it" in found[0]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"cluster: \xff\n", "policy.yaml:1:10: the byte 0xff is not UTF-8"),
        (b"\ncluster: x\xe9\n", "policy.yaml:2:11: the byte 0xe9 is not UTF-8"),
        (b"cluster: a\x00b\n", "policy.yaml:1:11: there is the character U+0000"),
        (b"cluster: [a\nhosts: b\n", "policy.yaml:2:6: this is not valid YAML"),
        (b"a: 'tabs\tmay stand here' b\n", "this is not valid YAML"),
        (b"a: b\t# but not here\n", "policy.yaml:1:5: there is a tab here"),
        (b"cluster: 'a\n", "policy.yaml:2:1: this is not valid YAML"),
        (b"%YAML 9" + b"9" * 5000 + b".1\n---\na: 1\n", "a number is too large"),
        (b'cluster: "\\UFFFFFFFF"\n', "a number is too large"),
        (b"[" * 5000, "is nested too deeply"),
        (b"a: 1\n" * 300_000, "the policy file is larger than 1000000 bytes"),
    ],
)
def test_what_is_no_yaml_is_said_with_its_line(tmp_path: Path, content: bytes, words: str) -> None:
    """One sentence for a file that cannot be read as YAML at all."""
    found = sentences(tmp_path, content)
    assert len(found) == 1
    assert words in found[0]


def test_a_text_with_control_characters_is_refused_and_shown_harmlessly(tmp_path: Path) -> None:
    """Neither a terminal's escape sequences nor half characters reach the screen."""
    found = sentences(tmp_path, text(cluster='cluster: "a\\e[31m\\uD800"'))
    assert len(found) == 1
    assert found[0].isprintable()
    assert "control character" in found[0]


@pytest.mark.parametrize("name", ["absent.yaml", "."])
def test_a_file_that_cannot_be_read_is_one_sentence(tmp_path: Path, name: str) -> None:
    """A missing file and a directory: no line, but the system's reason."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / name)
    assert str(caught.value).startswith(str(tmp_path / name) + ": the policy file cannot be read: ")
    assert len(caught.value.problems) == 1


def test_a_file_that_another_may_read_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its path is right: what differs is who looks."""

    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ConfigError, match="Permission denied; read it as root or as the daemon"):
        load(tmp_path / "policy.yaml")


def test_a_problem_is_plain_data_too(tmp_path: Path) -> None:
    """`--json` shows place, key and sentence apart."""
    (problem,) = problems(tmp_path, text("proof: disk"))
    shown = problem.to_json()
    assert (shown["line"], shown["column"], shown["path"]) == (10, 8, "proof")
    assert shown["text"] == str(problem)
