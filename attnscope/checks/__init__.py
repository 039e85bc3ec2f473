"""A checkpoint and a text in; whether what attnscope shows for them can be trusted, out."""

from attnscope.checks.run import check

__all__ = ["check"]
