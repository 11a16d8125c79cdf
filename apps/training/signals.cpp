// signals
