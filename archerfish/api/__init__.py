"""What clients may ask and what they are told, read and written once: for the service and for batches alike."""
