"""Files and batches that outlive the process: a durable store, and what runs it. Knows no HTTP."""
