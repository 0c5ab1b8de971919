"""TOUCHES nothing: a deterministic stand-in for Slurm, hypervisors and time."""
