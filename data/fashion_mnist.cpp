// fashion_mnist
