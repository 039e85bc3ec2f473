"""Measure what every head of a model does: the roles of `findings.head_roles`, and single numbers for a question."""
