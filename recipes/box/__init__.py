"""How the models in the box were made: tokenizer, data, training, distillation, evaluation, export."""
