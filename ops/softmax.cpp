// softmax
