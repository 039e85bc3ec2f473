"""From a RunConfig to findings: session, plan, pass."""

from attnscope.base.packages import refuse_calls

refuse_calls("run", "inspect")
