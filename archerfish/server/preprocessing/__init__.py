"""Bodies are read, chat templates rendered and prompts tokenized outside of the event loop, within limits."""
