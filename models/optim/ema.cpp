// ema
