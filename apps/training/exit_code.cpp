// exit_code
