"""Draw reports on terminals and in files. Never imports torch."""
