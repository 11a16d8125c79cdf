// factory
