// layer_norm
