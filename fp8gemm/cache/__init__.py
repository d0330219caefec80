"""Where cubins live: entries, who may be trusted with them, locks, seals, archives, eviction. It compiles nothing."""
