"""Cut heads, layers or edges of attention, and measure what changes."""

from attnscope.ablation.plan import AblationOptions
from attnscope.ablation.run import ablate, survey_effects

__all__ = ["AblationOptions", "ablate", "survey_effects"]
