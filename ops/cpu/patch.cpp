// patch
