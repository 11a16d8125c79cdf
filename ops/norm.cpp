// norm
