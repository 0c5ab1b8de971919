"""backfill: virtual nodes that fill the idle hosts of a Slurm cluster and give them back at once."""
