// zoo
