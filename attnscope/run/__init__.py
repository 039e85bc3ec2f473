"""From a RunConfig to findings: session, plan, pass."""
