// split
