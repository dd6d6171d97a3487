"""Training of drafters, and the drift of quantized models. Nothing here serves requests."""
