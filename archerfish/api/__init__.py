"""Bodies, replies and streams of all endpoints, for the service and for batches alike."""
