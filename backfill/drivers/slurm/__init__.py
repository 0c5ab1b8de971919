"""Slurm, through its command line tools and hooks."""
