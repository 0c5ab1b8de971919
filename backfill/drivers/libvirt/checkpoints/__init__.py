"""Checkpoints of instances: kept, sealed, verified, put back."""
