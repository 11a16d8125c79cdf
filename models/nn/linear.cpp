// linear
