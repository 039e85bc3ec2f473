"""Dump the attention of many texts to a file that survives interruption."""

from attnscope.base.packages import refuse_calls

refuse_calls("batch", "write_dump")
