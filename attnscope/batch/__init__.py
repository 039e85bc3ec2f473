"""Many texts in; a dump that survives whatever interrupts it out: reader, groups, journal, shards, and the runner."""
