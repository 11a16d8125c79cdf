// adamw
