// augment
