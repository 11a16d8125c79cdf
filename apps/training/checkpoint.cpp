// checkpoint
