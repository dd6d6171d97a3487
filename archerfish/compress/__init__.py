"""What making a model smaller does to it. Nothing here serves requests."""
