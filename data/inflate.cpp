// inflate
