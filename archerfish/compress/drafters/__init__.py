"""Training of what guesses a model's tokens, by self-distillation: on what the model itself writes."""
