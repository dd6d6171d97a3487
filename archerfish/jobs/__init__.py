"""Files and batches that outlive the process: a durable store and its runner."""
