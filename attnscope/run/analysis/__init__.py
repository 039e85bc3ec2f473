"""Turn a Trace into plain findings: pure functions, the only place where recorded tensors become a Report."""
