"""RUNS: observes the outside, asks the core for a plan, executes it and journals both."""
