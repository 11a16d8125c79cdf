// run_folder
