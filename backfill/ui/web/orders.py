"""What can be ordered through the API: the bodies of requests, with their bounds."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

_Name = Annotated[str, Field(min_length=1, max_length=256)]
_Text = Annotated[str, Field(max_length=1000)]


class _Order(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class EvictionOrder(_Order):
    """A host or a node to be closed, or opened again."""

    subject: _Name = Field(description="A host, or a node of ours.")
    on: bool = Field(True, description="False: open it again.")
    off: bool = Field(False, description="The host is off for good: what was on it is given up.")
    reason: _Text = Field("", description="Why, for those who ask later.")


class ReclaimOrder(_Order):
    """A burst host to be emptied."""

    subject: _Name = Field(description="A burst host, such as an OpenStack project.")
    keep: int = Field(0, ge=0, le=1_000_000, description="So many may stay.")
    on: bool = Field(True, description="False: lift the limit.")
    reason: _Text = ""


class RetryOrder(_Order):
    """A node that failed or was given up."""

    subject: _Name


class FleetOrder(_Order):
    """Instances that are made all or not at all."""

    n: int = Field(ge=1, le=1_000_000, description="How many.")
    image: str = Field("", max_length=256, description="Which image; empty: that of the policy file.")
    method: str = Field(
        "", max_length=32, description="full, linked or instant; empty: as the policy file says."
    )


class CheckpointWish(_Order):
    """A job whose state is to be saved."""

    job: _Name = Field(description="Its id, as Slurm shows it.")


_Names = Annotated[list[_Name], Field(min_length=1, max_length=1000)]


class VerifyOrder(_Order):
    """Checkpoints that are to be read again and compared with their checksums."""

    ids: _Names
    restore_on: str = Field("", max_length=256, description="A host on which each is loaded once as well.")


class RestoreOrder(_Order):
    """A checkpoint from which its job is to go on."""

    id: _Name


class RemovalOrder(_Order):
    """Checkpoints that are to be removed."""

    ids: _Names


class ProvisionOrder(_Order):
    """Nodes on which Salt's states are to hold."""

    nodes: _Names
    force: bool = Field(False, description="Run the states even where a look shows that they hold.")


class LeaksOrder(_Order):
    """A search for files that nobody needs any more."""

    remove: bool = Field(False, description="And remove them.")


class PolicyText(_Order):
    """A policy file."""

    text: str = Field(max_length=200_000)


class PreviewWish(_Order):
    """A policy file that is to be played on the latest day."""

    text: str = Field(min_length=1, max_length=60_000)
