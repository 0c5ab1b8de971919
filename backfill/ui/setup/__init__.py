"""From a living cluster and a few answers to everything that backfill needs there, and back again."""
