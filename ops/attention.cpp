// attention
