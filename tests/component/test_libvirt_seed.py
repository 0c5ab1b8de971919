"""The seed that gives a guest its identity: the same for the same, and read as it was meant."""

from __future__ import annotations

import io
import subprocess
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from backfill.core.model.fleet import Flavour, InstanceSpec, Tag
from backfill.drivers.libvirt.connection.domain_xml import DomainFiles
from backfill.drivers.libvirt.guest.seed import (
    ENTROPY_BYTES,
    Identity,
    for_a_clone,
    identity_text,
    own_root_text,
    peers_text,
    seed_tar,
)
from backfill.drivers.libvirt.settings import ImageFiles
from backfill.ports.errors import RefusedError
from backfill.ports.provider import SeedFile
from tests.component.guest_programs import GUEST

IDENTITY = Identity("vn1", "10.77.1.1/16", "10.77.0.1", "10.77.0.1", "10.77.0.1:6817", "-Z")
SPEC = InstanceSpec("vn1", "bm1", Tag("grete", "vn1", 3), Flavour(2, 512), "tiny & small", "10.77.1.1/16")
IMAGE = ImageFiles("/images/vmlinuz", "/images/initrd", "/images/disk.raw", "root=/dev/vda a<b")
FILES = DomainFiles("/shared/vn1/disk.qcow2", "/shared/vn1/seed.tar", "/shared/vn1/console.log")


def test_the_same_identity_gives_the_same_seed() -> None:
    """A repeated creation writes the same bytes."""
    assert seed_tar(IDENTITY, b"key") == seed_tar(IDENTITY, b"key")
    assert seed_tar(IDENTITY, b"key") != seed_tar(replace(IDENTITY, node_name="vn2"), b"key")


def test_a_seed_is_a_whole_number_of_sectors() -> None:
    """It is attached as a raw disk, and a disk consists of 512-byte sectors."""
    for size in (0, 1, 511, 512, 1024, 5000):
        assert len(seed_tar(IDENTITY, b"k" * size)) % 512 == 0


def test_all_seeds_are_equally_long() -> None:
    """A clone goes on with the disk sizes that its parent saw."""
    lengths = {
        len(seed_tar(IDENTITY, b"k" * size, entropy=entropy, canary=canary))
        for size in (0, 1024)
        for entropy in (b"", b"r" * ENTROPY_BYTES)
        for canary in (False, True)
    }
    assert len(lengths) == 1


def test_a_clones_randomness_is_the_first_thing_on_its_seed() -> None:
    """`lab/guest/become.c` reads it from the second block, before the guest reads anything else."""
    seed = seed_tar(IDENTITY, b"key", entropy=b"r" * ENTROPY_BYTES)
    assert seed.startswith(b"etc/backfill/entropy\0")
    assert seed[512 : 512 + ENTROPY_BYTES] == b"r" * ENTROPY_BYTES
    assert seed_tar(IDENTITY, b"key").startswith(b"etc/backfill/parent\0")


def test_only_a_canarys_seed_tells_it_to_try_itself_out() -> None:
    """An ordinary instance must never end by itself after a test."""
    for canary in (False, True):
        seed = seed_tar(IDENTITY, b"key", entropy=b"r" * ENTROPY_BYTES, canary=canary)
        with tarfile.open(fileobj=io.BytesIO(seed)) as tar:
            assert ("etc/backfill/canary" in tar.getnames()) is canary


def test_a_seed_unpacks_to_identity_and_key() -> None:
    """Unpacked over the root directory it gives three files; the key is for its owner only."""
    seed = seed_tar(IDENTITY, b"secret", entropy=b"r" * ENTROPY_BYTES)
    with tarfile.open(fileobj=io.BytesIO(seed)) as tar:
        members = {member.name: member for member in tar.getmembers()}
        assert list(members) == ["etc/backfill/entropy", "etc/backfill/identity", "etc/munge/munge.key"]
        assert members["etc/munge/munge.key"].mode == 0o400
        assert {member.uid for member in members.values()} == {0}
        key = tar.extractfile("etc/munge/munge.key")
        assert key is not None
        assert key.read() == b"secret"


def seed_with(size: int) -> bytes:
    """A clone's seed with a file of this size."""
    return seed_tar(IDENTITY, b"key", entropy=b"r" * ENTROPY_BYTES, more={"/data": SeedFile(b"d" * size)})


# What else is in the longest seed that a clone reads: four heads, three short files, the mark of its end.
_MOST = (64 << 10) - (4 + 3 + 2) * 512


@pytest.fixture(scope="module")
def unpack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone's way to unpack a seed from standard input, into the working folder."""
    folder = tmp_path_factory.mktemp("become")
    text = (GUEST / "become.c").read_text()
    for old, new in (('"/%.155s/', '"./%.155s/'), ('"/%.100s"', '"./%.100s"'), ("int main(", "int become(")):
        assert old in text
        text = text.replace(old, new)
    main = """
int main(void) {
    static char seed[LENGTH];
    return fread(seed, 1, LENGTH, stdin) != LENGTH || unpack(seed + 2 * BLOCK, seed + LENGTH);
}
"""
    (folder / "unpack.c").write_text(text + main)
    argv = ["gcc", "-O2", "-Wall", "-Werror", "-o", str(folder / "unpack"), str(folder / "unpack.c")]
    subprocess.run(argv, check=True)
    return folder / "unpack"


@pytest.mark.parametrize("size", [0, 100, 60_000, _MOST])
def test_a_clone_unpacks_all_of_a_seed_that_it_can_read(unpack: Path, tmp_path: Path, size: int) -> None:
    """To the last byte of it."""
    seed = for_a_clone("vn1", seed_with(size))
    assert len(seed) == 64 << 10
    subprocess.run([str(unpack)], input=seed, cwd=tmp_path, check=True)
    assert (tmp_path / "data").read_bytes() == b"d" * size
    assert (tmp_path / "etc/munge/munge.key").read_bytes() == b"key"


@pytest.mark.parametrize("size", [_MOST + 1, _MOST + 512, _MOST + 1024, 200_000])
def test_a_clone_takes_no_seed_that_it_cannot_read_to_its_end(
    unpack: Path, tmp_path: Path, size: int
) -> None:
    """It is refused before, with the remedy; a clone that gets it anyway does not go on without its end."""
    seed = seed_with(size)
    with pytest.raises(RefusedError, match=rf"vn1: its seed has {len(seed)} bytes.*65536.*user data"):
        for_a_clone("vn1", seed)
    done = subprocess.run([str(unpack)], input=seed, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode != 0
    assert b"backfill-become: " in done.stderr
    # A guest that boots reads all of it.
    with tarfile.open(fileobj=io.BytesIO(seed)) as tar:
        assert tar.getmember("data").size == size


def test_guests_know_one_another_by_name() -> None:
    """As lines of /etc/hosts, without one's own; not where they would not fit into the seed."""
    peers = {f"vn{i}": f"10.77.1.{i}" for i in range(1, 4)}
    assert peers_text(peers, "vn2") == b"10.77.1.1 vn1\n10.77.1.3 vn3\n"
    assert peers_text({f"vn{i}": "10.77.100.100" for i in range(2000)}, "vn2") == b""


def test_programs_can_be_made_to_do_nothing() -> None:
    """A symbolic link to /bin/true takes the place of a program that only hosts have."""
    with tarfile.open(fileobj=io.BytesIO(seed_tar(IDENTITY, b"", ("/etc/slurm/p.sh",)))) as tar:
        member = tar.getmember("etc/slurm/p.sh")
        assert (member.issym(), member.linkname) == (True, "/bin/true")


@pytest.mark.parametrize("context", ["prolog_slurmd", "epilog_slurmd", ""])
def test_they_can_be_made_to_hold_a_job_until_its_devices_are_there(tmp_path: Path, context: str) -> None:
    """Where the image has no program that asks, as on this machine, they end well all the same."""
    seed = seed_tar(IDENTITY, b"", ("/usr/lib/p",), asks="tcp:10.0.0.1:6833 21500")
    subprocess.run(["tar", "-x", "-C", tmp_path], input=seed, check=True)
    assert (tmp_path / "etc/backfill/hook").read_text() == "tcp:10.0.0.1:6833 21500\n"
    assert (tmp_path / "usr/lib/p").readlink() == Path("/etc/backfill/stand-in")
    script = tmp_path / "etc/backfill/stand-in"
    subprocess.run([script], env={"SLURM_SCRIPT_CONTEXT": context}, check=True)


@pytest.mark.parametrize("options", ["-Z", "", "-Z --conf 'Feature=a CPUs=1'", 'x"$(touch no)`;'])
def test_a_shell_reads_the_identity_as_it_was_meant(options: str) -> None:
    """Whatever the values hold, sourcing the file assigns them and does nothing else."""
    text = identity_text(replace(IDENTITY, slurmd_options=options))
    shown = subprocess.run(
        ["/bin/sh", "-c", f'{text}printf "%s|%s|%s" "$NODE_NAME" "$ADDRESS" "$SLURMD_OPTIONS"'],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown == f"vn1|10.77.1.1/16|{options}"


# --- document ------------------------------------------------------------------------------------


def test_a_guest_is_told_how_large_a_users_own_root_may_be() -> None:
    """The number first, then where mounts are, one a line: as `lab/guest/root.c` reads it."""
    mounts = ("10.0.0.1:/home /home nfs4 rw", "10.0.0.1:/software /software nfs4 ro")
    assert own_root_text(4096, mounts) == b"4096\n/home\n/software\n"
