"""backfill: virtual nodes that fill a Slurm cluster's idle hosts and give them back at once."""
