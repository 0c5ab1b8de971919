"""The simulated hypervisors and what happens on their hardware."""
