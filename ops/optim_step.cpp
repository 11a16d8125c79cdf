// optim_step
