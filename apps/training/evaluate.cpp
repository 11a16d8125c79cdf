// evaluate
