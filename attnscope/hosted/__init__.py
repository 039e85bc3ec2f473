"""A checkpoint of any architecture in; its queries, keys and values, as `transformers` computes them, out.

The second source of attention beside `model/native`: `transformers` runs the model, and hands every layer's queries,
keys, values, mask, scale, soft-cap, bias and sinks to the same `attend()`. It is imported here alone, when asked for.
"""

from attnscope.hosted.engine import Hosted
from attnscope.hosted.kinds import find_kind
from attnscope.hosted.loading import Guest, load_guest

__all__ = ["Guest", "Hosted", "find_kind", "load_guest"]
