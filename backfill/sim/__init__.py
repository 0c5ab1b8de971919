"""REPLAYS: traces and scenarios in simulated time."""
