"""Compare reports: aligned tokens, differences of weights and of pooled maps."""
