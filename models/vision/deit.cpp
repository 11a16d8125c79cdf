// deit
