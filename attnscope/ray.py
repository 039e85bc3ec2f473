"""Records of texts in data pipelines: `ray.data` and `datasets`."""

from attnscope.batch.mapper import RecordMapper

__all__ = ["RecordMapper"]
