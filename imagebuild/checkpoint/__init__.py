"""What vLLM makes of a quantized checkpoint, told from its config and its safetensors headers."""
