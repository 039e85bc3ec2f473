"""Check a model's attention against laws and references."""

from attnscope.checks.run import check

__all__ = ["check"]
