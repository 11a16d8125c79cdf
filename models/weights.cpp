// weights
