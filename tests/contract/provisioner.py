"""What every Provisioner must do, whatever is behind it; a rig brings nodes to life."""

from __future__ import annotations

from typing import Protocol

import pytest

from backfill.ports.capabilities import StateTeller
from backfill.ports.errors import NotFoundError
from backfill.ports.provider import Provisioner, SeedFile

PEM = "/etc/salt/pki/minion/minion.pem"


class ProvisionerRig(Protocol):
    """One provisioner, and nodes that can be started with the files it gave out."""

    provisioner: Provisioner

    def start(self, node: str, files: dict[str, SeedFile]) -> None:
        """Bring a machine with these files to life; returns when it is configured."""

    def spoil(self, node: str) -> str:
        """Change something on the node that a state holds; returns that state."""

    def hang(self, node: str) -> None:
        """Let the node answer no more."""


class ProvisionerContract:
    """Inherit, and give a fixture `rig`."""

    def test_keys_are_made_per_generation(self, rig: ProvisionerRig) -> None:
        """Each generation has a key of its own, and only the last one counts."""
        first = rig.provisioner.enrol("vn7", 1, "10.77.1.7/16")
        assert rig.provisioner.enrolled()["vn7"] == 1
        second = rig.provisioner.enrol("vn7", 2, "10.77.1.7/16")
        assert rig.provisioner.enrolled()["vn7"] == 2
        assert first[PEM] != second[PEM]
        rig.provisioner.expel("vn7", 1)
        assert rig.provisioner.enrolled()["vn7"] == 2
        rig.provisioner.expel("vn7", 2)
        rig.provisioner.expel("vn7", 2)
        assert "vn7" not in rig.provisioner.enrolled()

    def test_a_node_without_key_is_not_run(self, rig: ProvisionerRig) -> None:
        """A name that was never enrolled is refused; nobody is asked."""
        with pytest.raises(NotFoundError):
            rig.provisioner.apply(["vn9"], test=True)
        assert rig.provisioner.apply([], test=True) == {}

    def test_drift_is_found_and_put_right(self, rig: ProvisionerRig) -> None:
        """A test run tells what differs and changes nothing; a run puts it right."""
        rig.start("vn8", rig.provisioner.enrol("vn8", 1, "10.77.1.8/16"))
        assert rig.provisioner.apply(["vn8"], test=True)["vn8"].changed == ()
        state = rig.spoil("vn8")
        for _ in range(2):
            found = rig.provisioner.apply(["vn8"], test=True)["vn8"]
            assert found.ok
            assert [name for name, _ in found.changed] == [state]
        assert rig.provisioner.apply(["vn8"], test=False)["vn8"].ok
        assert rig.provisioner.apply(["vn8"], test=True)["vn8"].changed == ()

    def test_what_a_node_comes_to_is_known_while_it_has_its_key(self, rig: ProvisionerRig) -> None:
        """The same each time, of that generation alone, and of nobody else."""
        salt = rig.provisioner
        assert isinstance(salt, StateTeller)
        salt.enrol("vn12", 3, "10.77.1.12/16")
        first = salt.stated({"vn12": 3})
        assert set(first) == {"vn12"}
        assert salt.stated({"vn12": 3, "vn9": 1})["vn12"].listed == first["vn12"].listed
        assert salt.stated({"vn12": 2}) == {}
        salt.expel("vn12", 3)
        assert salt.stated({"vn12": 3}) == {}

    def test_no_answer_is_no_success(self, rig: ProvisionerRig) -> None:
        """A node that hangs is told apart from one whose states hold."""
        rig.start("vn6", rig.provisioner.enrol("vn6", 1, "10.77.1.6/16"))
        rig.hang("vn6")
        found = rig.provisioner.apply(["vn6"], test=True)["vn6"]
        assert not found.ok
        assert not found.answered
