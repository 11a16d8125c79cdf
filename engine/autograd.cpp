// autograd
