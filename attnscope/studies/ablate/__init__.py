"""Cut heads, layers or edges of attention, and measure what changes."""
