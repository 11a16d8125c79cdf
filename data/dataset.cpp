// dataset
