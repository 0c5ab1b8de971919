"""The one place for effects: actions become port calls, and results become changes."""
