"""Training of drafters by self-distillation, on texts that the target generates."""
