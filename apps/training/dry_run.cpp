// dry_run
