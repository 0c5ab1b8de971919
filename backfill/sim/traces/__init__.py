"""Reads traces of jobs and draws them from models: the input of a replay."""
