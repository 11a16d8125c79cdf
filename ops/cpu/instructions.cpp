// instructions
