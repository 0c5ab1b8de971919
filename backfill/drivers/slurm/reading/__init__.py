"""The ways of reading nodes and jobs from Slurm: text, JSON, slurmrestd, pyslurm."""
