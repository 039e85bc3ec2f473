"""Cut heads, layers or edges of attention, and measure what changes."""

from attnscope.ablation.per_text import HeadEffects, head_effects
from attnscope.ablation.plan import AblationOptions, bytes_per_token, logit_bytes
from attnscope.ablation.run import ablate, survey_effects

__all__ = [
    "AblationOptions",
    "HeadEffects",
    "ablate",
    "bytes_per_token",
    "head_effects",
    "logit_bytes",
    "survey_effects",
]
