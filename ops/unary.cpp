// unary
