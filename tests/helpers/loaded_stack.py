"""Load all weights of a stack that reads them when it needs them."""

from attnscope.model.stack import Stack


def load_all(stack: Stack) -> Stack:
    """Read everything now."""
    with stack.weights.in_order(len(stack.blocks)) as blocks:
        for _ in blocks:
            pass
    return stack
