"""Roles of heads, their probes and the numbers for a question."""
