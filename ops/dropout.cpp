// dropout
