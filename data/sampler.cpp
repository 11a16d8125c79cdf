// sampler
