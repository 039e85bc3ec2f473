"""Chat templates: found beside a checkpoint, and rendered in a process of their own."""
