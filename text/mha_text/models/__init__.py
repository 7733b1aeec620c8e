"""Floor 5: pretrained text encoders, read from safetensors and tokenizer files without torch."""
