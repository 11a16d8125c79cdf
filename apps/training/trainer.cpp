// trainer
