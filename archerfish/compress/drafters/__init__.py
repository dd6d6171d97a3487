"""Training of drafters by self-distillation, on what the target itself writes."""
