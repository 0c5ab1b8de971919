"""Changes Slurm's configuration as a transaction, in one file that is ours alone."""
