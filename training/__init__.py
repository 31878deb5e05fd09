"""How the models in the box were made: data, tokenizer, trainer. The engine never imports this."""
