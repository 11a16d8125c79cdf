// binary
