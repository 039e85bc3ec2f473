"""Lessons on attention, with the numbers of a reader's own sentence."""
