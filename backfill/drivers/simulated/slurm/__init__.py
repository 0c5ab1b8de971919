"""The simulated slurmctld."""
