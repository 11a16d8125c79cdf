// optimizer
