"""The identity that a guest gets at birth, and later requests to it."""
