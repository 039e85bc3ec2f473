"""What cuts change."""
