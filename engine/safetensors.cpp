// safetensors
