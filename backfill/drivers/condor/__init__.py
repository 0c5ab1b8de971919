"""An HTCondor pool: what waits in it, and what became of payloads that ran in pilots of this cluster."""
