// param_groups
