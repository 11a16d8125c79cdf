// sgd
