// copy
