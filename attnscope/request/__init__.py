"""What the user asks for: options, masks, selections, limits."""
