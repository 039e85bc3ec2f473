"""A stack that reads its weights when it needs them, in; the same with all of them there, out."""

from attnscope.model.stack import Stack


def load_all(stack: Stack) -> Stack:
    """Read everything now."""
    with stack.weights.in_order(len(stack.blocks)) as blocks:
        for _ in blocks:
            pass
    return stack
