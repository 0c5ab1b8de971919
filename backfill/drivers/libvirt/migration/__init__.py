"""The way of an instance to another host."""
