"""Who somebody is: Slurm's tokens, the machine's users and groups, the audit log."""
