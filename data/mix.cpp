// mix
