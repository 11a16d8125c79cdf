// precision
