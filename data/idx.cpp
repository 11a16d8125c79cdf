// idx
