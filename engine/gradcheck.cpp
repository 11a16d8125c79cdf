// gradcheck
