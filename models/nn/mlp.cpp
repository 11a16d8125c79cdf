// mlp
